package directory

import (
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
)

// What a killed process leaves is removed by the next one that makes a file in the same directory, and
// nothing else is: not what another is still working at, and not what only looks like it.
func TestNextTempDirRemovesWhatAKilledOneLeft(t *testing.T) {
	out := t.TempDir()
	atWork, err := NewTempDir(out)
	if err != nil {
		t.Fatal(err)
	}
	defer atWork.Remove()
	killed, err := NewTempDir(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(killed.File(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	killed.lock.Close() // as the kernel does it
	others := []string{".karve-mine.partial", ".other-3.partial", ".karve-4.partial.old"}
	for _, name := range others {
		if err := os.Mkdir(filepath.Join(out, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(out, name, lockName), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	data := filepath.Join(out, ".karve-5.partial") // a data directory, which may have any name
	lock, err := Acquire(data)
	if err != nil {
		t.Fatal(err)
	}
	lock.Close()
	others = append(others, filepath.Base(data))
	for name, files := range map[string][]string{ // of an earlier release, and one with a file of somebody's
		".karve-6.partial": {formerLock, fileName, fileName + "-wal"}, ".karve-7.partial": {formerLock, fileName, "notes"},
	} {
		if err := os.Mkdir(filepath.Join(out, name), 0o700); err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if err := os.WriteFile(filepath.Join(out, name, file), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	others = append(others, ".karve-7.partial")
	mine, err := NewTempDir(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := mine.Remove(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	want := append([]string{filepath.Base(atWork.dir)}, others...)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
}

// The removal of what others have left meets directories that are being made, and takes one now and then before its
// process has locked it. That process makes another one.
func TestTempDirsAtOnce(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	if os.TempDir() != os.Getenv("TMPDIR") {
		t.Skip("temporary files are elsewhere on this system")
	}
	const prefix = "karve-here-"
	if _, err := NewTempDir(os.TempDir()); err != nil { // of another kind
		t.Fatal(err)
	}
	var makers sync.WaitGroup
	for range 8 {
		makers.Go(func() {
			for range 50 {
				p, err := NewPrivate(prefix)
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(p.File(), nil, 0o600); err != nil {
					t.Error(err)
				}
				if err := p.Remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	makers.Wait()
	entries, err := os.ReadDir(os.TempDir())
	if err != nil || len(entries) != 1 {
		t.Errorf("left are %v, %v; want the directory of another kind", entries, err)
	}
}
