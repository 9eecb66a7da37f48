package server_test

import (
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/insecure"
)

// writeFile creates a file for the test and returns its path.
func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// The log is buffered for longer than the test runs, so what is in it at the end was flushed
// by the stop.
func TestAuditIsFlushedByStop(t *testing.T) {
	policy := writeFile(t, "policy.yaml", `
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  verbs: [create]
  resources: [{group: "", resources: [configmaps]}]
- level: None
`)
	log := filepath.Join(t.TempDir(), "audit.log")
	c := start(t, func(config *server.Config) {
		config.APIServerArgs = []string{
			"audit-policy-file=" + policy, "audit-log-path=" + log, "audit-log-mode=batch",
			"audit-log-batch-max-wait=1h", "audit-log-batch-max-size=10000", "audit-log-batch-buffer-size=20000",
		}
	})
	create(t, c.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "by-secure"}})
	plain := clientFor(t, &rest.Config{Host: c.InsecureURL, Dial: insecure.Dial})
	create(t, plain.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "by-insecure"}})
	if _, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "by-secure", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	if content, _ := os.ReadFile(log); len(content) > 0 {
		t.Errorf("the log was written before the stop, which then proves nothing: %s", content)
	}
	if err := c.stop(); err != nil {
		t.Fatal(err)
	}
	users := map[string]string{}
	for _, event := range auditEvents(t, log) {
		if event.Verb != "create" || event.ObjectRef == nil || event.ObjectRef.Resource != "configmaps" {
			t.Errorf("not in the policy: %+v", event)
			continue
		}
		users[event.ObjectRef.Name] = event.User.Username
	}
	for name, want := range map[string]string{"by-secure": "kubernetes-admin", "by-insecure": "system:unsecured"} {
		if users[name] != want {
			t.Errorf("user of %s: got %q, want %q", name, users[name], want)
		}
	}
}
