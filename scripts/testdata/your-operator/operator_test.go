package operator

import (
	"os/exec"
	"strings"
	"testing"
)

// TestCluster passes in `karve run`: README.md has `karve run -- go test ./...`.
func TestCluster(t *testing.T) {
	out, err := exec.Command("kubectl", "get", "namespaces", "--output", "name").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !strings.Contains(string(out), "namespace/default\n") {
		t.Errorf("got %q, want the namespaces of a new cluster", out)
	}
}
