package check

import (
	"context"
	"encoding/binary"
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

func TestControlGroup(t *testing.T) {
	const v1 = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpu\t1\t1\t1\nmemory\t0\t1\t"
	want(t, fake(map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids\n"}).controlGroup(), OK, "v2, with")
	want(t, fake(map[string]string{"sys/fs/cgroup/cgroup.controllers": "cpuset cpu io pids\n"}).controlGroup(), Warn, "v2, without")
	want(t, fake(map[string]string{"proc/cgroups": v1 + "1\n", "sys/fs/cgroup/memory/tasks": ""}).controlGroup(), Warn, "v1, with")
	want(t, fake(map[string]string{"proc/cgroups": v1 + "1\n"}).controlGroup(), Warn, "not mounted")
	want(t, fake(map[string]string{"proc/cgroups": v1 + "0\n"}).controlGroup(), Warn, "v1, without")
	want(t, fake(nil).controlGroup(), Unknown, "unknown on this system")
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

	written := now.Add(48 * time.Hour)
	file := filepath.Join(dir, datastore.EngineFile)
	if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chtimes(file, written, written)); err != nil {
		t.Fatal(err)
	}
	want(t, at(now), Warn, "the data directory was written at "+written.UTC().Format(time.DateOnly))
}

// Sockets as the kernel of a little-endian machine prints them.
const (
	tcp4 = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 111 1 0 100 0 0 10 0\n" +
		"   1: 0100007F:192B 0100007F:9C40 01 00000000:00000000 00:00000000 00000000     0        0 113 1 0 100 0 0 10 0\n"
	tcp6 = "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n" +
		"   0: 00000000000000000000000001000000:192B 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 112 1 0 100 0 0 10 0\n"
)

func machineWithK3s() *host {
	return fake(map[string]string{
		"proc/net/tcp":      tcp4,
		"proc/net/tcp6":     tcp6,
		"proc/1/comm":       "systemd\n",
		"proc/1/fd/3":       "-> socket:[9]",
		"proc/77/comm":      "k3s-server\n",
		"proc/77/fd/11":     "-> socket:[112]",
		"proc/99/comm":      "nginx\n",
		"proc/99/fd/5":      "-> socket:[111]",
		"proc/99/fd/6":      "-> socket:[113]",
		"proc/sys/whatever": "",
	})
}

func TestPorts(t *testing.T) {
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the table is of a little-endian machine")
	}
	h := machineWithK3s()
	free, taken := func() error { return nil }, func() error { return errors.New("the port is in use") }
	got := h.ports([]Port{
		{"secure-port", 6443, taken}, {"insecure-port", 8080, taken}, {"etcd-listen", 2379, taken}, {"a", 7000, free}, {"b", 0, free},
	}, 0, 0)
	want(t, got[0], Fail, "in use: it is k3s-server (pid 77)")
	want(t, got[1], Fail, "in use: it is nginx (pid 99)")
	if got[2].Found != "the port is in use" {
		t.Errorf("a port of nobody we see: got %q", got[2].Found)
	}
	want(t, got[3], OK, "7000 is free")
	want(t, got[4], OK, "any free port")
	replacing := h.ports([]Port{{"secure-port", 6443, taken}, {"insecure-port", 8080, taken}}, 77, 0)
	want(t, replacing[0], OK, "6443 is used by k3s-server (pid 77), which this replaces")
	want(t, replacing[1], Fail, "in use: it is nginx (pid 99)")
	own := h.ports([]Port{{"secure-port", 6443, taken}, {"insecure-port", 8080, taken}}, 0, 77)
	want(t, own[0], OK, "6443 is used by the server of this data directory, k3s-server (pid 77)")
	want(t, own[1], Fail, "in use: it is nginx (pid 99)")
	if got, want := h.listeningOf(77), []string{"[::1]:6443"}; !slices.Equal(got, want) {
		t.Errorf("k3s listens on %v, want %v", got, want)
	}
	if got, want := h.listeningOf(99), []string{"127.0.0.1:8080"}; !slices.Equal(got, want) {
		t.Errorf("nginx listens on %v, want %v", got, want)
	}
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
	if runtime.GOOS != "windows" {
		for _, c := range []struct {
			mode os.FileMode
			want Result
		}{{0o711, OK}, {0o777, Warn}, {0o730, Warn}, {0o755, Warn}} {
			if err := os.Chmod(dir, c.mode); err != nil {
				t.Fatal(err)
			}
			want(t, checkDir("data directory", dir, 0), c.want, fmt.Sprintf("mode %04o", c.mode))
		}
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

func TestSpeed(t *testing.T) {
	dir := t.TempDir()
	took, err := measureSync(t.Context(), dir)
	if err != nil || len(took) == 0 {
		t.Fatalf("got %v, %v, want some times", took, err)
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	ms := func(all ...int) (d []time.Duration) {
		for _, n := range all {
			d = append(d, time.Duration(n)*time.Millisecond)
		}
		return d
	}
	want(t, judgeSpeed(ms(1, 300, 2), nil), OK, "fsync 2ms, at worst 300ms of 3")
	want(t, judgeSpeed(ms(25, 300, 2), nil), Warn, "fsync 25ms")
	want(t, judgeSpeed(nil, os.ErrPermission), Unknown, "permission")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	want(t, judgeSpeed(measureSync(ended, dir)), Unknown, "canceled")
}

func TestStore(t *testing.T) {
	dir := t.TempDir()
	target := Target{DataDir: dir, StoreDir: dir}
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
	for _, check := range []string{"cgroup", "memory", "clock", "data directory", "disk space", "file system", "disk speed", "datastore"} {
		if !slices.ContainsFunc(all, func(f Finding) bool { return f.Check == check && f.Found != "" }) {
			t.Errorf("got %+v, want %q in it", all, check)
		}
	}
}
