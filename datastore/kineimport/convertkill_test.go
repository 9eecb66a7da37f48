package kineimport

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/datastore/enginetest"
)

// The conversion is killed at its n-th write, sync, rename or removal, as seen by
// the kernel, for every n.
func TestConversionKilledAtEverySystemCall(t *testing.T) {
	if testing.Short() {
		t.Skip("runs a process for every system call of a conversion")
	}
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed: no way to stop at a system call")
	}
	if out, err := exec.Command(strace, "-f", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("strace may not trace here: %v: %s", err, out)
	}
	master := t.TempDir()
	want, revision := enginetest.KineFixture(t, master)
	text, err := os.ReadFile(filepath.Join(master, FileName))
	if err != nil {
		t.Fatal(err)
	}
	const calls = "pwrite64,ftruncate,fsync,fdatasync,?rename,renameat,?renameat2,?unlink,unlinkat"
	killed, done := 0, false
	for n := 1; !done; n++ {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, FileName), text, 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(strace, "-f", "-qq", "-o", os.DevNull, "-e", "trace="+calls,
			"-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", calls, n), os.Args[0])
		cmd.Env = append(os.Environ(), enginetest.ChildDir+"="+dir)
		out, _ := cmd.Output()
		done = string(out) == "done <nil>"
		if !done {
			killed++
		}
		e, _, lock := openConverted(t, dir)
		enginetest.WantKeys(t, e, want)
		if e.Revision() != revision {
			t.Errorf("killed at call %d: revision %d, want %d", n, e.Revision(), revision)
		}
		e.Close()
		lock.Close()
		if left := enginetest.Glob(t, dir, "*"); len(left) != 3 {
			t.Errorf("killed at call %d: %v is left", n, left)
		}
		if t.Failed() {
			return
		}
	}
	if killed < 10 {
		t.Errorf("%d calls were killed, want at least 10", killed)
	}
	t.Logf("killed at each of %d system calls", killed)
}
