package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestWriteReplacesWholeFilesWithTheExactMode(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	for _, mode := range []fs.FileMode{0o600, 0o666, 0o440} {
		text := fmt.Sprint("written with ", mode)
		if err := Write(path, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if info.Mode().Perm() != mode {
			t.Errorf("mode %v, want %v", info.Mode(), mode)
		}
		if got, _ := os.ReadFile(path); string(got) != text {
			t.Errorf("content %q, want %q", got, text)
		}
	}
	wantNames(t, dir, "file")
}

// Every step can fail, or be the last one before a power cut.
func TestEveryFileIsTheOldOneOrTheNewOne(t *testing.T) {
	failure := errors.New("no more")
	for _, cut := range []bool{false, true} {
		for n := 0; ; n++ {
			dir := t.TempDir()
			var files []File
			for _, name := range []string{"a", "b"} {
				path := filepath.Join(dir, name)
				if err := os.WriteFile(path, []byte("old"), 0o600); err != nil {
					t.Fatal(err)
				}
				files = append(files, File{Path: path, Data: []byte("new"), Mode: 0o600})
			}
			steps := 0
			w := Writer{Fault: func(step, path string) error {
				if steps++; steps == n+1 || cut && steps > n {
					return failure
				}
				return nil
			}}
			err := w.Write(files...)
			for _, f := range files {
				if got, _ := os.ReadFile(f.Path); string(got) != "old" && string(got) != "new" {
					t.Errorf("step %d: %s is %q", n+1, filepath.Base(f.Path), got)
				}
			}
			if err == nil {
				if steps != n || n != 9 { // 2×(create, write, sync, rename) and a directory
					t.Errorf("%d steps, and none failed", steps)
				}
				break
			}
			if !errors.Is(err, failure) {
				t.Errorf("step %d: error %v", n+1, err)
			}
			if !cut {
				wantNames(t, dir, "a", "b")
				continue
			}
			Writer{}.Sweep(dir)
			wantNames(t, dir, "a", "b")
		}
	}
}

func TestWriteSyncsEveryDirectoryOnce(t *testing.T) {
	var got []string
	w := Writer{Fault: func(step, path string) error {
		if step == "syncdir" {
			got = append(got, path)
		}
		return nil
	}}
	one, other := t.TempDir(), t.TempDir()
	var files []File
	for _, dir := range []string{one, other} {
		for _, name := range []string{"a", "b"} {
			files = append(files, File{Path: filepath.Join(dir, name), Mode: 0o600})
		}
	}
	if err := w.Write(files...); err != nil {
		t.Fatal(err)
	}
	if want := []string{one, other}; !slices.Equal(got, want) {
		t.Errorf("synced %v, want %v", got, want)
	}
}

func TestErrorsNameTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "missing", "file")
	for name, err := range map[string]error{
		"Write":  Write(path, nil, 0o600),
		"Create": Create(path, true, func(io.Writer) error { return nil }),
	} {
		if !errors.Is(err, fs.ErrNotExist) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestCreateLeavesAFileThatExists(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	write := func(text string) func(io.Writer) error {
		return func(w io.Writer) error { _, err := io.WriteString(w, text); return err }
	}
	if err := Create(path, false, write("first")); err != nil {
		t.Fatal(err)
	}
	if err := Create(path, false, write("second")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("error %v, want that the file exists", err)
	}
	if err := Create(path, true, func(w io.Writer) error { io.WriteString(w, "third"); return io.ErrUnexpectedEOF }); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("error %v, want that of the function", err)
	}
	if got, _ := os.ReadFile(path); string(got) != "first" {
		t.Errorf("content %q", got)
	}
	wantNames(t, dir, "file")
	if err := Create(path, true, write("fourth")); err != nil {
		t.Fatal(err)
	}
	if got, _ := os.ReadFile(path); string(got) != "fourth" {
		t.Errorf("content %q", got)
	}
	wantNames(t, dir, "file")
}

func TestMakeDirSyncsEveryNewName(t *testing.T) {
	top := t.TempDir()
	var got []string
	w := Writer{Fault: func(step, path string) error { got = append(got, step+" "+path); return nil }}
	dir := filepath.Join(top, "a", "b")
	if err := w.MakeDir(dir); err != nil {
		t.Fatal(err)
	}
	if want := []string{"syncdir " + top, "syncdir " + filepath.Join(top, "a")}; !slices.Equal(got, want) {
		t.Errorf("steps %v, want %v", got, want)
	}
	if got = nil; w.MakeDir(dir) != nil || got != nil {
		t.Errorf("a directory that exists took the steps %v", got)
	}
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below")} {
		if err := MakeDir(dir); err == nil || !strings.Contains(err.Error(), file+" is a file: name a directory") {
			t.Errorf("%s: got %v", dir, err)
		}
	}
}

func TestSweepRemovesTemporaryFilesOnly(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".karve-1.tmp", ".karve-x", "x.tmp", "karve-1.tmp"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	Writer{}.Sweep(dir)
	wantNames(t, dir, ".karve-x", "karve-1.tmp", "x.tmp")
}

func wantNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	if !slices.Equal(got, want) {
		t.Errorf("the directory has %v, want %v", got, want)
	}
}
