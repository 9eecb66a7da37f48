package scheduler

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A configuration file is refused for what would have no effect; what is upstream's default may stand there.
func TestFileHasAnEffect(t *testing.T) {
	file := filepath.Join(t.TempDir(), "scheduler.yaml")
	for content, want := range map[string]string{
		"": "",
		"clientConnection: {kubeconfig: '', qps: 50, burst: 100, contentType: application/json}\nenableProfiling: true": "",
		"clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}":                                                "remove clientConnection.kubeconfig: the API server",
		"clientConnection: {qps: 7}":       "remove clientConnection.qps: requests from",
		"clientConnection: {burst: 7}":     "remove clientConnection.burst: ",
		"enableProfiling: false":           "remove enableProfiling: the scheduler has no port",
		"enableContentionProfiling: false": "remove enableContentionProfiling: ",
		"parallelism: many":                "parallelism",
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
