package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/karve-k8s/karve/server"
)

// writeFile creates a file for the test and returns its path.
func writeFile(t *testing.T, name, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	fatal(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// A preset's log has no Secret. It is outside of the data directory here, because upstream leaves it open after a stop.
func TestAuditPreset(t *testing.T) {
	log := filepath.Join(t.TempDir(), "audit.log")
	c := start(t, func(config *server.Config) {
		config.AuditPreset, config.APIServerArgs = "full", []string{"audit-log-path=" + log}
	})
	create(t, c.CoreV1().Secrets("default"), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"a": "planted"}})
	create(t, c.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "c"}, Data: map[string]string{"a": "ordinary"}})
	_, err := c.CoreV1().Secrets("default").List(t.Context(), metav1.ListOptions{})
	fatal(t, err)
	force := metav1.PatchOptions{FieldManager: "test"}
	for _, p := range []types.PatchType{types.JSONPatchType, types.MergePatchType, types.StrategicMergePatchType, types.ApplyYAMLPatchType} {
		body := `{"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"b": "cGxhbnRlZA==*"}}`
		if p == types.JSONPatchType {
			body = `[{"op": "add", "path": "/immutable", "value": "planted"}]`
		}
		if _, err := c.CoreV1().Secrets("default").Patch(t.Context(), "s", p, []byte(body), force); err == nil {
			t.Errorf("a patch of type %s was not refused", p)
		}
	}
	const flow = `{apiVersion: v1, kind: ConfigMap, metadata: {name: flow}}`
	_, err = c.CoreV1().ConfigMaps("default").Patch(t.Context(), "flow", types.ApplyYAMLPatchType, []byte(flow), force)
	fatal(t, err)
	info, err := os.Stat(log)
	fatal(t, err)
	if info.Mode().Perm() != 0o600 {
		t.Errorf("mode: got %v", info.Mode())
	}
	bodies := map[string]bool{}
	for _, event := range auditEvents(t, log) {
		if event.ObjectRef != nil && event.User.Username == "kubernetes-admin" {
			bodies[event.Verb+" "+event.ObjectRef.Resource] = event.RequestObject != nil || event.ResponseObject != nil
		}
	}
	for what, want := range map[string]bool{"create configmaps": true, "patch configmaps": true, "patch secrets": false, "create secrets": false, "list secrets": false} {
		if got, logged := bodies[what]; !logged || got != want {
			t.Errorf("%s: logged %v, with a body %v, want %v", what, logged, got, want)
		}
	}
	text, err := os.ReadFile(log)
	fatal(t, err)
	if !strings.Contains(string(text), "ordinary") || strings.Contains(string(text), "planted") || strings.Contains(string(text), "cGxhbnRlZA") {
		t.Error("the log has a Secret, or no ConfigMap")
	}
}
