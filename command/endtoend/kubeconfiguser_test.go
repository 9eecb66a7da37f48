package endtoend

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A user of karve kubeconfig --user has the rights of its name and groups, and no others.
func TestKubeconfigUser(t *testing.T) {
	parallel(t)
	dir := t.TempDir()
	start(t, dir, "--secure-port", "0", "--insecure-port", "-1", "--disable-scheduler")
	karve(t, "kubectl", "--data-dir", dir, "create", "clusterrolebinding", "readers", "--clusterrole", "view", "--group", "readers")
	config := filepath.Join(t.TempDir(), "config")
	said := karve(t, "kubeconfig", "--data-dir", dir, "--user", "jane", "--group", "readers", "--group", "others", "--ttl", "1h", "--into", config)
	if !strings.Contains(said, `context "karve-jane"`) {
		t.Errorf("got %s, want the name of the context", said)
	}
	as := func(args ...string) string {
		got := finish(t, command(t, "karve", append([]string{"kubectl", "--kubeconfig", config}, args...)...))
		return got.stdout + got.stderr
	}
	for _, tc := range []struct{ args, want string }{
		{"auth whoami -o jsonpath={.status.userInfo.username},{.status.userInfo.groups}", `jane,["others","readers","system:authenticated"]`},
		{"get pods", "No resources found"},
		{"get secrets", "Forbidden"},
		{"create namespace mine", "Forbidden"},
	} {
		if got := as(strings.Fields(tc.args)...); !strings.Contains(got, tc.want) {
			t.Errorf("kubectl %s: got %s, want %s", tc.args, got, tc.want)
		}
	}
	if got := karve(t, "certs", "list", "--data-dir", dir); !strings.Contains(got, "user/jane") {
		t.Errorf("karve certs list: got %s, want jane", got)
	}
	for mode, want := range map[os.FileMode]string{0o600: "", 0o640: "has mode 0640: chmod 0600 it; with --into FILE"} {
		cmd, stderr := command(t, "karve", "kubeconfig", "--data-dir", dir, "--user", "jane"), &strings.Builder{}
		file, err := os.Create(filepath.Join(t.TempDir(), "jane"))
		if err != nil {
			t.Fatal(err)
		}
		cmd.Stdout, cmd.Stderr = file, stderr
		if err := errors.Join(file.Chmod(mode), cmd.Run(), file.Close()); err != nil {
			t.Fatal(err)
		}
		if got := stderr.String(); (got == "") != (want == "") || !strings.Contains(got, want) {
			t.Errorf("into a file of mode %v: got %q, want %q", mode, got, want)
		}
	}
	for args, want := range map[string]string{
		"--group readers":                    "--user NAME",
		"--user system:kube-scheduler":       "components",
		"--user jane --ttl 0s":               "--ttl",
		"--user jane --group system:masters": "administrator", // a warning
	} {
		got := finish(t, command(t, "karve", append([]string{"kubeconfig", "--data-dir", dir}, strings.Fields(args)...)...))
		if !strings.Contains(got.stderr, want) {
			t.Errorf("karve kubeconfig %s: got %s, want %s", args, got.stderr, want)
		}
	}
}
