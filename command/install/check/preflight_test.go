package check

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/kineimport"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/memory"
)

func fake(files map[string]string) *host {
	root := fstest.MapFS{}
	for path, text := range files {
		if to, ok := strings.CutPrefix(text, "-> "); ok {
			root[path] = &fstest.MapFile{Data: []byte(to), Mode: fs.ModeSymlink}
			continue
		}
		root[path] = &fstest.MapFile{Data: []byte(text)}
	}
	return &host{root: root, now: time.Now}
}

// want checks a finding's result and its text, and that a finding that needs an act names
// one.
func want(t *testing.T, got Finding, result Result, text string) {
	t.Helper()
	if got.Result != result || !strings.Contains(got.Found, text) {
		t.Errorf("got %+v, want %s and %q", got, result, text)
	}
	if (got.Result == Warn || got.Result == Fail) != (got.Do != "") {
		t.Errorf("got %+v: what to do is for warnings and failures, and for all of them", got)
	}
}

func TestMemory(t *testing.T) {
	machine := func(total, available, group string) *host {
		return fake(map[string]string{
			"proc/meminfo":             "MemTotal: " + total + " kB\nMemFree: 1 kB\nMemAvailable: " + available + " kB\n",
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": group + "\n",
		})
	}
	want(t, machine("948304", "612000", "max").memory(0), OK, "926 Mi, 597 Mi available")
	want(t, machine("948304", "102400", "max").memory(0), Warn, "100 Mi available; little is available")
	want(t, machine("948304", "612000", "104857600").memory(0), Warn, "control group 100 Mi; little is available")
	want(t, machine("948304", "612000", "50000000").memory(0), Fail, "needs more than "+size(memory.Least))
	want(t, machine("48304", "40000", "max").memory(0), Fail, "needs more than "+size(memory.Least))
	want(t, machine("948304", "612000", "max").memory(2<<30), Warn, "the limit is higher than that")
	want(t, fake(nil).memory(0), Unknown, "unknown on this system")
}

func TestClock(t *testing.T) {
	h := fake(nil)
	dir := t.TempDir()
	target := Target{DataDir: dir, StoreDir: dir}
	at := func(now time.Time) Finding {
		h.now = func() time.Time { return now }
		return h.clock(target)
	}
	now := time.Now()
	want(t, at(now), OK, now.UTC().Format(time.DateOnly))
	want(t, at(time.Unix(0, 0)), Warn, "this program is from "+certs.Reference().Format(time.DateOnly))

	if _, _, err := certs.Ensure(certs.Config{Dir: filepath.Join(dir, "certs")}); err != nil {
		t.Fatal(err)
	}
	want(t, at(now), OK, now.UTC().Format(time.DateOnly))
	want(t, at(now.AddDate(3, 0, 0)), Warn, "certificates have expired")
}

func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	below := filepath.Join(dir, "a", "b")
	want(t, checkDir("data directory", dir, 0), OK, "mode 0700")
	want(t, checkDir("data directory", below, 0), OK, "will be created in "+dir)
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, checkDir("data directory", file, 0), Fail, "file")
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("left behind: %v (%v), want nothing but the file", left, err)
	}
	for _, c := range []struct {
		mode os.FileMode
		want Result
	}{{0o711, OK}, {0o777, Warn}, {0o730, Warn}, {0o755, Warn}} {
		if err := os.Chmod(dir, c.mode); err != nil {
			t.Fatal(err)
		}
		want(t, checkDir("data directory", dir, 0), c.want, fmt.Sprintf("mode %04o", c.mode))
	}
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	want(t, checkDir("data directory", dir, 0), Fail, "the server of "+dir+" runs already: karve (pid ")
	want(t, checkDir("data directory", dir, os.Getpid()+1), Fail, "the server of "+dir+" runs already: karve (pid ")
	want(t, checkDir("data directory", dir, os.Getpid()), Warn, "mode 0755")
}

func TestFileSystem(t *testing.T) {
	if runtime.GOOS != "linux" {
		want(t, checkFileSystem(t.TempDir()), Unknown, "unknown on this system")
		return
	}
	if err := tryFileSystem(t.TempDir()); err != nil {
		t.Error(err)
	}
	// The kernel's own file system, in which nobody can make a file.
	want(t, checkFileSystem("/proc"), Fail, "/proc/.mmap-")
	want(t, checkSpace("/proc"), Fail, "0 Mi free")
	if why, err := fleeting("/nowhere"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a directory that is not there: got %q, %v", why, err)
	}
	if _, err := os.Stat("/dev/shm"); err == nil {
		want(t, checkFileSystem("/dev/shm"), Warn, "tmpfs")
	}
}

func TestStore(t *testing.T) {
	dir := t.TempDir()
	target := Target{DataDir: dir, StoreDir: dir, Look: sqlitefile.ReadInfo}
	want(t, checkStore(Target{Store: "an etcd"}), OK, "an etcd: not checked here")
	want(t, checkStore(target), OK, "none yet")
	old := filepath.Join(dir, kineimport.FileName)
	if err := os.WriteFile(old, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	want(t, checkStore(target), Fail, "karve datastore import "+old)
	os.Remove(old)

	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	engine, err := datastore.OpenEngine(lock, datastore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	want(t, checkStore(target), OK, "schema 1, revision 1")

	// SQLite's user_version is at byte 60 of the file, big-endian.
	f, err := os.OpenFile(filepath.Join(dir, datastore.EngineFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{99}, 63); err != nil {
		t.Fatal(err)
	}
	want(t, checkStore(target), Fail, "has schema 99, this release knows 1")
	if _, err := f.WriteAt([]byte{7}, 68); err != nil {
		t.Fatal(err)
	}
	want(t, checkStore(target), Fail, "belongs to another program")
	if err := f.Truncate(50); err != nil {
		t.Fatal(err)
	}
	want(t, checkStore(target), Fail, "is damaged")
}

func TestRunChangesNothing(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	all := Run(t.Context(), Target{DataDir: dir, StoreDir: dir})
	if left, err := os.ReadDir(filepath.Dir(dir)); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	if n := Failed([]Finding{{Result: OK}, {Result: Fail}, {Result: Warn}, {Result: Unknown}, {Result: Fail}}); n != 2 {
		t.Errorf("got %d failures, want 2", n)
	}
	for _, check := range []string{"memory", "clock", "data directory", "disk space", "file system", "disk speed", "datastore"} {
		if !slices.ContainsFunc(all, func(f Finding) bool { return f.Check == check && f.Found != "" }) {
			t.Errorf("got %+v, want %q in it", all, check)
		}
	}
}
