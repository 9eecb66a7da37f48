package endtoend

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/karve-k8s/karve/internal/eventually"
)

// alone is a user of whom no server runs but those of the test.
const alone = 54321

// pretend makes a directory of that user's look like that of a server that runs, until the function that it returns is called.
func pretend(t *testing.T, dir string) (end func()) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Join(dir, "certs"), 0o700), os.WriteFile(filepath.Join(dir, "admin.kubeconfig"), nil, 0o600),
		os.Chown(dir, alone, alone), os.Chown(filepath.Join(dir, "admin.kubeconfig"), alone, alone)); err != nil {
		t.Fatal(err)
	}
	holder := exec.Command("sh", "-c", `echo $$ >"$1"; exec flock "$1" sh -c 'echo; cat'`, "sh", filepath.Join(dir, "lock"))
	holder.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: alone, Gid: alone}}
	in, err := holder.StdinPipe()
	out, err2 := holder.StdoutPipe()
	if err := errors.Join(err, err2, holder.Start()); err != nil {
		t.Fatal(err)
	}
	end = func() {
		in.Close()
		holder.Wait()
	}
	t.Cleanup(end)
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil { // it has the lock
		t.Fatal(err)
	}
	return end
}

// If nothing names a server, all commands look for it in one way.
func TestCommandsChooseTheirServer(t *testing.T) {
	if _, err := exec.LookPath("flock"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs flock, and root, who can be another user")
	}
	t.Parallel()
	above := publicDir(t)
	one, other := filepath.Join(above, "one"), filepath.Join(above, "other")
	t.Cleanup(func() { os.RemoveAll(one); os.RemoveAll(other) })
	pretend(t, one)
	end := pretend(t, other)
	run := func(words string) outcome {
		cmd := command(t, "karve", strings.Fields(words)...)
		nobody(t, cmd)
		become(cmd, alone)
		return finish(t, cmd)
	}
	const several = "2 servers of this user run, in "
	want := several + one + ", " + other + ": choose one with --data-dir DIR or KARVE_DATA_DIR"
	for _, words := range []string{
		"status", "wait", "kubectl get namespaces", "kubeconfig", "token list", "token create", "addons apply coredns", "certs list", "certs renew", "secrets status",
		"snapshot", "reset --yes", "backup create", "datastore stats", "ssh public-key", "support", "cluster-token rotate --lost",
	} {
		t.Run(words, func(t *testing.T) { wantProblems(t, run(words), want) })
	}
	// A backup is restored, and a datastore replaced, where no server runs.
	for _, words := range []string{"datastore salvage", "backup restore " + above + "/none"} {
		if got := run(words); got.code != 1 || strings.Contains(got.stderr, several) {
			t.Errorf("karve %s: got %+v", words, got)
		}
	}
	end()
	eventually.Nil(t, "the only server", func() error {
		if got := run("status"); got.code != exitNotReady && got.code != 1 || !strings.Contains(got.stdout+got.stderr, one) {
			return errors.New(got.stdout + got.stderr)
		}
		return nil
	})
}
