package endtoend

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// The exit codes of karve run beside those of the command that it runs.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
)

// kubectlLink is what a command calls kubectl: the test binary behind it has to
// be told that it is karve.
const kubectlLink = asKarve + "=1 kubectl "

// withCluster runs sh -c script by karve run; what is left in the temporary
// directory fails the test.
func withCluster(t *testing.T, script string, options ...string) outcome {
	t.Helper()
	cmd := command(t, "karve", append(append([]string{"run"}, options...), "--", "sh", "-c", script)...)
	cmd.Env = append(cmd.Env, "KARVE_DATA_DIR=/dev/null/of-a-server", "KUBECONFIG=/dev/null/of-another")
	return finish(t, cmd)
}

// On a machine without kubectl, karve is that as well, whatever the name of its own file: here it has a dot.
func TestRunGivesTheCommandACluster(t *testing.T) {
	parallel(t)
	tools := t.TempDir()
	for _, name := range []string{"sh", "ls", "cut"} {
		path, err := exec.LookPath(name)
		if err == nil {
			err = os.Symlink(path, filepath.Join(tools, name))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := command(t, "karve", "run", "--", "sh", "-c", kubectlLink+"get serviceaccount default -o name; ls -l $KUBECONFIG | cut -c1-10 >&2")
	cmd.Env = append(cmd.Env, "PATH="+tools, "KARVE_DATA_DIR=/dev/null/of-a-server", "KUBECONFIG=/dev/null/of-another")
	got := finish(t, cmd)
	if got.code != 0 || got.stdout != "serviceaccount/default\n" || !strings.HasPrefix(got.stderr, "-rw-------") {
		t.Errorf("code %d, stdout %q, stderr %q", got.code, got.stdout, got.stderr)
	}
}

func TestRunEndsAsTheCommandDoes(t *testing.T) {
	long(t)
	parallel(t)
	for script, want := range map[string]int{
		"exit 7":        7,
		"kill -TERM $$": 128 + int(syscall.SIGTERM),
	} {
		got := withCluster(t, script, append(bare, "--log-level", "debug")...)
		shown := strings.Contains(got.stderr, "the server's log:\n") && strings.Contains(got.stderr, "starting the API server")
		if got.code != want || got.stdout != "" || !shown {
			t.Errorf("%s: code %d, want %d; stdout %q; log shown: %v", script, got.code, want, got.stdout, shown)
		}
	}
}

func TestRunWithoutAProgram(t *testing.T) {
	parallel(t)
	plain := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(plain, []byte("no program\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args []string
		code int
		want string
	}{
		{nil, 1, "want karve run -- COMMAND, or a terminal for a shell"},
		{append(bare, "--", "/no/such/program"), exitNotFound, "/no/such/program"},
		{append(bare, "--", plain), exitNotExecutable, "permission denied"},
		{[]string{"--secure-prot", "1", "--", "true"}, 1, "did you mean --secure-port?"},
	} {
		got := finish(t, command(t, "karve", append([]string{"run"}, test.args...)...))
		if got.code != test.code || !strings.Contains(got.stderr, test.want) || got.stdout != "" {
			t.Errorf("%q: code %d, stderr %q, stdout %q; want code %d and %q", test.args, got.code, got.stderr, got.stdout, test.code, test.want)
		}
	}
}

// A server that does not start is no reason to run anything.
func TestRunWithoutAServer(t *testing.T) {
	parallel(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	got := withCluster(t, "echo ran", "--secure-port", fmt.Sprint(l.Addr().(*net.TCPAddr).Port))
	if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "--secure-port") {
		t.Errorf("code %d, stdout %q, stderr %q; want 1, nothing, and the option's name", got.code, got.stdout, got.stderr)
	}
}

func TestRunStaysWhereItIsTold(t *testing.T) {
	long(t)
	parallel(t)
	dir := filepath.Join(t.TempDir(), "data")
	options := append(bare, "--data-dir", dir)
	if got := withCluster(t, kubectlLink+"create namespace kept", options...); got.code != 0 {
		t.Fatalf("%+v", got)
	}
	if got := withCluster(t, kubectlLink+"get namespace kept -o name", options...); got.stdout != "namespace/kept\n" {
		t.Errorf("%+v", got)
	}
}
