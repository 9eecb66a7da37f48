package scheduler

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A configuration file of another installation names a kubeconfig that this machine does not have.
func TestFileNamesAKubeconfig(t *testing.T) {
	dir := t.TempDir()
	file, there, missing := filepath.Join(dir, "scheduler.yaml"), filepath.Join(dir, "kubeconfig"), filepath.Join(dir, "scheduler.conf")
	if err := os.WriteFile(there, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for content, want := range map[string]string{
		"":                           "",
		"clientConnection: {qps: 7}": "",
		"clientConnection: {kubeconfig: " + there + "}":   "",
		"clientConnection: {kubeconfig: " + missing + "}": "clientConnection.kubeconfig: open " + missing,
		"parallelism: many": "parallelism",
	} {
		if err := os.WriteFile(file, []byte("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"+content+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		upstream, err := Parse([]string{"config=" + file}, false)
		if err != nil {
			t.Fatal(err)
		}
		err = upstream.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--kube-scheduler-arg config="+file)) {
			t.Errorf("%q: got %v, want %q", content, err, want)
		}
	}
}
