package kineimport

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/datastore/enginetest"
)

// The conversion is killed at its n-th write, sync, rename or removal, as seen by
// the kernel, and a second time. In short mode, n is every seventh.
func TestConversionKilledAtEverySystemCall(t *testing.T) {
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
	killed, done, step := 0, false, 1
	if testing.Short() {
		step = 7
	}
	for n := 1; !done; n += step {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, FileName), text, 0o600); err != nil {
			t.Fatal(err)
		}
		run := func() bool {
			cmd := exec.Command(strace, "-f", "-qq", "-o", os.DevNull, "-e", "trace="+calls,
				"-e", fmt.Sprintf("inject=%s:signal=KILL:when=%d", calls, n), os.Args[0])
			cmd.Env = append(os.Environ(), enginetest.ChildDir+"="+dir)
			out, _ := cmd.Output()
			return string(out) == "done <nil>"
		}
		if done = run(); !done {
			killed++
			run() // a second time at the same call, or at what is that now
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
		if kept, err := os.ReadFile(filepath.Join(dir, FileName+ConvertedSuffix)); err != nil || !bytes.Equal(kept, text) {
			t.Errorf("killed at call %d: the old file is not what it was (%v)", n, err)
		}
		if t.Failed() {
			return
		}
	}
	if killed < 10/step {
		t.Errorf("%d calls were killed, want at least %d", killed, 10/step)
	}
	t.Logf("killed at %d system calls", killed)
}
