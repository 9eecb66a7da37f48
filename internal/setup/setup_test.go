package setup

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func begin(t *testing.T, dir string) *Files {
	t.Helper()
	f, err := Begin(dir)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFilesArePutBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, made := filepath.Join(dir, "old"), filepath.Join(dir, "new", "made")
	write(t, old, "1")
	f := begin(t, dir)
	if err := errors.Join(f.Replace(old, []byte("2"), 0o640, -1), f.Replace(made, []byte("2"), 0o755, -1)); err != nil {
		t.Fatal(err)
	}
	want(t, old, "2")
	want(t, made, "2")
	if info, err := os.Stat(made); err != nil || info.Mode() != 0o755 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	if !f.Interrupted(old) || f.Interrupted(made) || !f.Made(made) {
		t.Error("the copies are not those of the replaced files")
	}
	if err := f.PutBack(); err != nil {
		t.Fatal(err)
	}
	f.End()
	want(t, old, "1")
	want(t, made, "")
	left, _ := filepath.Glob(filepath.Join(dir, "*", ".karve*"))
	locks, _ := filepath.Glob(filepath.Join(dir, ".karve*"))
	if Exists(old+PreviousSuffix) || len(left)+len(locks) > 0 {
		t.Errorf("left over: %q %q", left, locks)
	}
}

// A power cut between the replacement and the end of the wait keeps the way back. It may leave a part of a line.
func TestAnotherProcessPutsBackWhatWasBeforeThePowerCut(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path, made := filepath.Join(dir, "karve"), filepath.Join(dir, "made")
	write(t, path, "good")
	for _, content := range []string{"killed", "bad"} {
		f := begin(t, dir)
		if err := errors.Join(f.Claim(path, true), f.Claim(made, true), f.Replace(path, []byte(content), 0o755, -1), f.Replace(made, nil, 0o755, -1)); err != nil {
			t.Fatal(err)
		}
		if content == "bad" {
			if err := f.PutBack(); err != nil {
				t.Fatal(err)
			}
		} else if _, err := f.lock.WriteString("+" + dir); err != nil {
			t.Fatal(err)
		}
		f.End()
	}
	want(t, path, "good")
	want(t, made, "")
}

// What Karve has not made is neither replaced nor taken for its copy.
func TestClaim(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	f := begin(t, dir)
	defer f.End()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"unit": "# Written by karve install.\n", "old": "[Unit]\nDescription=Karve, the Kubernetes control plane in one process\n", "script": "#!/bin/sh\nexec karve\n", "copied": "Written by karve", "copied.previous": ""} {
		write(t, filepath.Join(dir, name), content)
	}
	program, err := os.ReadFile(self)
	if err = errors.Join(err, os.Symlink(self, filepath.Join(dir, "link"))); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "program"), string(program))
	for name, says := range map[string]string{"none": "", "unit": "", "old": "", "program": "", "script": "is not replaced", "link": "is not replaced", "copied": "copied.previous is in the way"} {
		if err := f.Claim(filepath.Join(dir, name), false); says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: got %v, want %q", name, err, says)
		}
	}
	if err := f.Claim(filepath.Join(dir, "script"), true); err != nil {
		t.Errorf("a file that users may write: %v", err)
	}
}

func TestMounted(t *testing.T) {
	t.Parallel()
	const table = "1 2 0:3 / /d/backups/a\\040b rw - tmpfs\n4 2 0:3 / /d/manifests rw\n"
	for path, want := range map[string]bool{"/d": true, "/d/backups": true, "/d/backups/a b": true, "/d/manifests": true, "/d/manifests-2": false, "/d/certs": false, "/d/backups/a": false} {
		if got := Mounted(table, path); got != want {
			t.Errorf("%s: got %v", path, got)
		}
	}
}

// By `su`, root has the PATH of a user, in which the programs of the system are missing.
func TestProgramsOfTheSystem(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	was := systemDirs
	systemDirs = []string{filepath.Join(dir, "sbin")}
	t.Cleanup(func() { systemDirs = was })
	if err := os.Mkdir(systemDirs[0], 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(systemDirs[0], "modprobe"), []byte("#!/bin/sh\necho \"$PATH\"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := Run(t.Context(), "modprobe")
	if err != nil || strings.TrimSpace(out) != dir+":"+systemDirs[0] || !Has("modprobe") || Has("insmod") {
		t.Errorf("got %q, %v", out, err)
	}
}

func TestLockNamesTheOther(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	unlock, err := Lock(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Lock(dir); err == nil || !strings.Contains(err.Error(), "another command of Karve") {
		t.Errorf("got %v", err)
	}
	if info, err := os.Stat(filepath.Join(dir, lockName)); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("another user can take the lock: %v, %v", info, err)
	}
	unlock()
	if unlock, err = Lock(dir); err != nil {
		t.Fatal(err)
	}
	unlock()
}

func TestWaitEndsWhenItIsHopeless(t *testing.T) {
	t.Parallel()
	no := func() bool { return false }
	yes := func() bool { return true }
	say := func(string, ...any) {}
	if err := Wait(context.Background(), "x", time.Hour, say, no, yes); err == nil || !strings.Contains(err.Error(), "x was not ready") {
		t.Errorf("got %v", err)
	}
	if err := Wait(context.Background(), "x", time.Hour, say, yes, yes); err != nil {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Wait(ended, "x", time.Hour, say, no, no); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// want compares the content of a file; empty is that there is none.
func want(t *testing.T, path, text string) {
	t.Helper()
	got, err := os.ReadFile(path)
	if string(got) != text || (err != nil) != (text == "") {
		t.Errorf("%s: got %q, %v, want %q", path, got, err, text)
	}
}
