package endtoend

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// A member of a Unix group uses the API by the socket, with the rights of the group of Kubernetes that
// --socket-group names. Without the option, other users do not get there.
func TestUsersOfThisMachine(t *testing.T) {
	parallel(t)
	if runtime.GOOS != "linux" {
		t.Skip("other systems do not tell who connects to a socket")
	}
	dir := t.TempDir()
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil { // others may enter
		t.Fatal(err)
	}
	p := start(t, dir, append(bare, "--socket-group", "65534=pod-readers")...)
	p.kubectl("create", "clusterrole", "pod-readers", "--verb", "get,list", "--resource", "pods") // that of view is empty without controllers
	p.kubectl("create", "clusterrolebinding", "pod-readers", "--clusterrole", "pod-readers", "--group", "pod-readers")
	as := func(args ...string) outcome {
		t.Helper()
		cmd := command(t, "karve", append([]string{"kubectl", "--data-dir", dir}, args...)...)
		nobody(t, cmd)
		return finish(t, cmd)
	}
	if got := as("auth", "whoami", "-o", "jsonpath={.status.userInfo}"); !strings.Contains(got.stdout, `"username":"unix:nobody"`) || !strings.Contains(got.stdout, "pod-readers") {
		t.Errorf("whoami: got %+v", got)
	}
	p.poll("the role binding", func() error { // it takes a moment to reach the authorizer
		if got := as("get", "pods", "--all-namespaces"); got.code != 0 {
			return errors.New(got.stderr)
		}
		return nil
	})
	if got := as("get", "secrets"); got.code == 0 || !strings.Contains(got.stderr, `User "unix:nobody" cannot list resource "secrets"`) {
		t.Errorf("Secrets: got %+v, want them forbidden", got)
	}
	p.stop()

	p = start(t, dir, append(bare, "--socket-group", "65533=pod-readers")...)
	if got := as("get", "pods"); got.code == 0 || !strings.Contains(got.stderr, "user nobody is in no Unix group that --socket-group") || strings.Count(got.stderr, "\n") != 1 {
		t.Errorf("a user in no such group: got %+v, want one sentence", got)
	}
	p.stop()
	start(t, dir, bare...)
	if got := as("get", "pods"); got.code == 0 || strings.Contains(got.stderr, "Unix group") {
		t.Errorf("without --socket-group: got %+v, want no way in", got)
	}
	if got := command(t, "karve", "kubectl", "--data-dir", dir, "get", "namespaces"); finish(t, got).code != 0 {
		t.Error("the server's own user gets no answer")
	}
}
