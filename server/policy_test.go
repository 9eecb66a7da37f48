package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
)

// Policies in files act although the server has not settled. The plugin refuses what they match until it
// has the index of OpenAPI.
func TestPolicyInFileNeedsNoSettling(t *testing.T) {
	dir, config := t.TempDir(), filepath.Join(t.TempDir(), "admission.yaml")
	for path, text := range map[string]string{
		filepath.Join(dir, "policy.yaml"): `
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: mark.static.k8s.io}
spec:
  failurePolicy: Fail
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: ["v1"], operations: ["CREATE"], resources: ["configmaps"]}]
  mutations: [{patchType: ApplyConfiguration, applyConfiguration: {expression: 'Object{data: {"from": "file"}}'}}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: mark.static.k8s.io}
spec: {policyName: mark.static.k8s.io}
`,
		config: `
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: MutatingAdmissionPolicy
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: MutatingAdmissionPolicyConfiguration, staticManifestsDir: ` + dir + `}
`,
	} {
		fatal(t, os.WriteFile(path, []byte(text), 0o600))
	}
	c := start(t, func(c *server.Config) {
		c.SettleAfter = time.Hour
		c.APIServerArgs = append(c.APIServerArgs, "admission-control-config-file="+config, "request-timeout=1h") // half of it is the longest wait
	})
	mutatedSoon(t, c, "default", "file")
}

// The controller that checks the types in policies knows the built-in ones, whether it was built with the first
// policy or before.
func TestPolicyTypesAreChecked(t *testing.T) {
	c := shared(t)
	name := c.namespace(t)
	policies := c.AdmissionregistrationV1().ValidatingAdmissionPolicies()
	create(t, policies, &registrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: registrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &registrationv1.MatchResources{ResourceRules: []registrationv1.NamedRuleWithOperations{{RuleWithOperations: registrationv1.RuleWithOperations{
				Operations: []registrationv1.OperationType{registrationv1.Create},
				Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
			}}}},
			Validations: []registrationv1.Validation{{Expression: `object.date.size() == 0`}},
		},
	})
	eventually.Nil(t, "the wrong field is in the policy's status", func() error {
		policy, err := policies.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if checked := policy.Status.TypeChecking; checked == nil || len(checked.ExpressionWarnings) != 1 ||
			!strings.Contains(checked.ExpressionWarnings[0].Warning, "undefined field 'date'") {
			return fmt.Errorf("got %+v, want a warning that date is undefined", policy.Status.TypeChecking)
		}
		return nil
	})
}
