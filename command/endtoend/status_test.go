package endtoend

import (
	"encoding/json"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/command/status"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/version"
)

// The exit codes of karve status for a server that does not run, and for one that is not ready.
const (
	exitStopped  = 3
	exitNotReady = 4
)

func statusOf(t *testing.T, dir string, wantCode int) status.ServerStatus {
	t.Helper()
	got := finish(t, command(t, "karve", "status", "--data-dir", dir, "-o", "json"))
	if got.code != wantCode || got.stderr != "" {
		t.Errorf("karve status: exit code %d, want %d\n%s%s", got.code, wantCode, got.stdout, got.stderr)
	}
	var s status.ServerStatus
	if err := json.Unmarshal([]byte(got.stdout), &s); err != nil {
		t.Fatalf("%q: %v", got.stdout, err)
	}
	return s
}

func TestStatus(t *testing.T) {
	parallel(t)
	dir, began := t.TempDir(), time.Now()
	p := start(t, dir, append(bare, "--memory-limit", "200Mi")...)
	s := statusOf(t, dir, 0)
	if s.State != "ready" || s.Problem != "" || s.PID != p.cmd.Process.Pid || s.URL != p.url || s.Version != version.Full() {
		t.Errorf("got %+v, want a ready server, process %d, at %s, version %s", s, p.cmd.Process.Pid, p.url, version.Full())
	}
	// The kernel counts from its own start, in hundredths.
	if s.Since == nil || s.Since.Before(began.Add(-5*time.Second)) || s.Since.After(time.Now().Add(5*time.Second)) {
		t.Errorf("since: got %v, want about %v", s.Since, began)
	}
	if s.Page != p.insecure+"/karve/" || !strings.Contains(p.stdout.String(), "\nPage: "+s.Page+"\n") {
		t.Errorf("page: got %q, want that of %s, as the server said: %s", s.Page, p.insecure, p.stdout.String())
	}
	if s.Datastore == nil || s.Datastore.Revision < 2 || s.Datastore.Bytes == 0 {
		t.Errorf("datastore: got %+v, want one with revisions", s.Datastore)
	}
	if s.LastBackup != nil {
		t.Errorf("last backup: got %+v, want none", s.LastBackup)
	}
	if s.Memory == nil || s.Memory.Limit != 200<<20 {
		t.Errorf("memory: got %+v, want a limit of 200 Mi", s.Memory)
	}
	if runtime.GOOS == "linux" {
		if s.Memory.Anonymous < 10<<20 {
			t.Errorf("anonymous memory: got %d, want that of a server", s.Memory.Anonymous)
		}
	}

	file := filepath.Join(t.TempDir(), "backup.db")
	karve(t, "datastore", "backup", "--data-dir", dir, file)
	if b := statusOf(t, dir, 0).LastBackup; b == nil || b.File != file || b.Revision < 2 || time.Since(b.Time) > time.Minute {
		t.Errorf("last backup: got %+v, want that of now to %s", b, file)
	}
	table := karve(t, "status", "--data-dir", dir)
	for _, want := range []string{"state ", " ready\n", p.url, p.insecure + "/karve/\n", "limit 200.0 Mi", file} {
		if !strings.Contains(table, want) {
			t.Errorf("karve status: got\n%swant %q in it", table, want)
		}
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}

	p.stop()
	s = statusOf(t, dir, exitStopped)
	if s.State != "stopped" || s.PID != 0 || s.URL != "" || s.Page != "" || s.Datastore == nil {
		t.Errorf("got %+v, want a stopped server with a datastore", s)
	}
	got := finish(t, command(t, "karve", "status", "--data-dir", dir))
	if got.code != exitStopped || got.stderr != "" || !strings.Contains(got.stdout, " stopped\n") || !strings.Contains(got.stdout, "which no longer exists") {
		t.Errorf("karve status: got %+v, want code %d, stopped, and that the backup is gone", got, exitStopped)
	}
}

// Whoever has the lock and has not written the kubeconfig is starting.
func TestStatusOfAStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if s := statusOf(t, dir, exitNotReady); s.State != "starting" || s.PID != os.Getpid() || s.Since == nil || s.Datastore != nil {
		t.Errorf("got %+v, want process %d starting", s, os.Getpid())
	}
	// A process of another PID namespace has another number here.
	if err := os.WriteFile(filepath.Join(dir, "lock"), []byte("1 pid:[1]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := statusOf(t, dir, exitNotReady); runtime.GOOS == "linux" && (s.State != "starting" || s.PID != 0) {
		t.Errorf("got %+v, want one that is starting, and no process", s)
	}
	// With a kubeconfig and nobody who answers, it is not ready, and why is said.
	text := `{"apiVersion":"v1","kind":"Config","current-context":"karve","contexts":[{"name":"karve","context":{"cluster":"karve"}}],"clusters":[{"name":"karve","cluster":{"server":"http://127.0.0.1:1"}}]}`
	if err := os.WriteFile(filepath.Join(dir, "admin.kubeconfig"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if s := statusOf(t, dir, exitNotReady); s.State != "not ready" || !strings.Contains(s.Problem, "refused") {
		t.Errorf("got %+v, want one that is not ready because connections are refused", s)
	}
}

// A stopped server whose datastore is not in its directory has neither lost it nor never made a backup.
func TestStatusOfADatastoreElsewhere(t *testing.T) {
	long(t)
	parallel(t)
	dir := t.TempDir()
	p := start(t, dir, append(bare, "--datastore-endpoint", "memory://")...)
	running := statusOf(t, dir, 0).Elsewhere
	p.stop()
	got := finish(t, command(t, "karve", "status", "--data-dir", dir))
	if running == "" || got.code != exitStopped || !strings.Contains(got.stdout, running) || strings.Contains(got.stdout, "last backup") {
		t.Errorf("got %+v, want %q as while it ran, and nothing of backups", got, running)
	}
	got = finish(t, command(t, "karve", "status", "--data-dir", dir, "--datastore-endpoint", "postgres://karve:s3cret@db.example/karve"))
	if !strings.Contains(got.stdout, "postgres://karve@db.example/karve is a database of yours") || strings.Contains(got.stdout+got.stderr, "s3cret") {
		t.Errorf("with --datastore-endpoint: got %+v", got)
	}
}

func TestStatusOfNothing(t *testing.T) {
	t.Parallel()
	wantProblems(t, finish(t, command(t, "karve", "status", "--data-dir", "/nowhere/at/all")), "no server has been started in /nowhere/at/all")
	wantProblems(t, finish(t, command(t, "karve", "status", "word")), "takes options only")
}
