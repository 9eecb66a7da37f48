package server_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

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
