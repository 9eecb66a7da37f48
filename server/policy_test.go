package server_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/server"
)

func policyRules() *registrationv1.MatchResources {
	return &registrationv1.MatchResources{ResourceRules: []registrationv1.NamedRuleWithOperations{{RuleWithOperations: configMaps[0]}}}
}

func TestValidatingAdmissionPolicy(t *testing.T) {
	c := shared(t)
	ns := c.namespace(t)
	policies, bindings := c.AdmissionregistrationV1().ValidatingAdmissionPolicies(), c.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings()
	create(t, policies, &registrationv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: registrationv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: policyRules(),
			Validations:      []registrationv1.Validation{{Expression: `object.metadata.name != "forbidden"`, Message: "the policy says no"}},
		},
	})
	create(t, bindings, &registrationv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: registrationv1.ValidatingAdmissionPolicyBindingSpec{
			PolicyName: ns, ValidationActions: []registrationv1.ValidationAction{registrationv1.Deny},
			MatchResources: &registrationv1.MatchResources{NamespaceSelector: inNamespace(ns)},
		},
	})
	refusedSoon(t, c, ns, "the policy says no")
	create(t, c.CoreV1().ConfigMaps(ns), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "allowed"}})
}

func TestMutatingAdmissionPolicy(t *testing.T) {
	c := shared(t)
	ns := c.namespace(t)
	policies, bindings := c.AdmissionregistrationV1().MutatingAdmissionPolicies(), c.AdmissionregistrationV1().MutatingAdmissionPolicyBindings()
	create(t, policies, &registrationv1.MutatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: registrationv1.MutatingAdmissionPolicySpec{
			MatchConstraints:   policyRules(),
			ReinvocationPolicy: registrationv1.NeverReinvocationPolicy,
			Mutations: []registrationv1.Mutation{{
				PatchType:          registrationv1.PatchTypeApplyConfiguration,
				ApplyConfiguration: &registrationv1.ApplyConfiguration{Expression: `Object{data: {"from": "policy"}}`},
			}},
		},
	})
	create(t, bindings, &registrationv1.MutatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: registrationv1.MutatingAdmissionPolicyBindingSpec{
			PolicyName: ns, MatchResources: &registrationv1.MatchResources{NamespaceSelector: inNamespace(ns)},
		},
	})
	mutatedSoon(t, c, ns, "policy")
}

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
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := start(t, func(c *server.Config) {
		c.SettleAfter = time.Hour
		c.APIServerArgs = append(c.APIServerArgs, "admission-control-config-file="+config, "request-timeout=1h") // half of it is the longest wait
	})
	mutatedSoon(t, c, "default", "file")
}
