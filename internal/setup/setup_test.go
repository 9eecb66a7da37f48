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

func TestFilesArePutBack(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	old, made := filepath.Join(dir, "old"), filepath.Join(dir, "new", "made")
	write(t, old, "1")
	f := &Files{}
	if err := errors.Join(f.Replace(old, []byte("2"), 0o640, -1), f.Replace(made, []byte("2"), 0o755, -1)); err != nil {
		t.Fatal(err)
	}
	want(t, old, "2")
	want(t, made, "2")
	if info, err := os.Stat(made); err != nil || info.Mode() != 0o755 {
		t.Errorf("got %v, %v", info.Mode(), err)
	}
	if !Interrupted(old) || Interrupted(made) {
		t.Error("the copies are not those of the replaced files")
	}
	if err := f.PutBack(); err != nil {
		t.Fatal(err)
	}
	want(t, old, "1")
	want(t, made, "")
	left, _ := filepath.Glob(filepath.Join(dir, "*", ".karve*"))
	if Interrupted(old) || len(left) > 0 {
		t.Errorf("left over: %q", left)
	}
}

// A power cut between the replacement and the end of the wait keeps the way back.
func TestAnotherProcessPutsBackWhatWasBeforeThePowerCut(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "karve")
	write(t, path, "good")
	for _, content := range []string{"killed", "bad"} {
		f := &Files{}
		if err := f.Replace(path, []byte(content), 0o755, -1); err != nil {
			t.Fatal(err)
		}
		if content == "bad" {
			if err := f.PutBack(); err != nil {
				t.Fatal(err)
			}
		}
	}
	want(t, path, "good")
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
