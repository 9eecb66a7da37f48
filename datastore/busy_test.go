package datastore

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// otherProgram is a process that has the database open and holds the lock of a statement.
type otherProgram struct {
	cmd   *exec.Cmd
	close func() // releases the database and waits for the process
}

// hold starts such a process. The error is the one that the process reports.
func hold(t *testing.T, dir, statement string) (*otherProgram, error) {
	t.Helper()
	h := &otherProgram{cmd: exec.Command(os.Args[0])}
	h.cmd.Env = append(os.Environ(), "KARVE_CRASH_DIR="+dir, "KARVE_CRASH_MODE="+holding+statement)
	in, err := h.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h.close = func() {
		in.Close()
		_ = h.cmd.Wait()
	}
	t.Cleanup(h.close)
	line, _ := bufio.NewReader(out).ReadString('\n')
	if text, refused := strings.CutPrefix(line, "refused: "); refused {
		return nil, errors.New(text)
	}
	return h, nil
}

const holding = "hold:"

// holdingChild is the other program. It begins a transaction, reports that, and exits when its
// standard input ends.
func holdingChild(dir, statement string) error {
	c, err := sqlitefile.Connect(filepath.Join(dir, EngineFile), url.Values{"_pragma": {"busy_timeout(100)"}})
	if err != nil {
		return err
	}
	err = c.Exec(statement)
	if err == nil {
		_, err = c.Number("SELECT count(*) FROM log")
	}
	if err != nil {
		fmt.Println("refused:", err)
		return nil
	}
	fmt.Println("holding")
	_, err = io.Copy(io.Discard, os.Stdin)
	return errors.Join(err, c.Close())
}

// A start waits for another program that has the database open, and is refused after a while. Meanwhile the
// file does not change.
func TestStartWaitsForAnotherProgram(t *testing.T) {
	t.Parallel()
	for _, statement := range []string{"BEGIN", "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE"} {
		for _, clean := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, clean=%v", statement, clean), func(t *testing.T) {
				t.Parallel()
				dir := writtenStore(t, clean)
				want := newestOf(t, copyStore(t, dir))
				other, err := hold(t, dir, statement)
				if err != nil {
					t.Fatal(err)
				}
				lock, err := directory.Acquire(dir)
				if err != nil {
					t.Fatal(err)
				}
				defer lock.Close()
				before := filesOf(t, dir)
				opts := Options{BallastBytes: -1}
				_, err = OpenEngine(lock, opts)
				if !errors.Is(err, sqlitefile.ErrBusy) || errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "fuser "+filepath.Join(dir, EngineFile)) {
					t.Errorf("got %v, want ErrBusy, which says how to find the program", err)
				}
				if after := filesOf(t, dir); fmt.Sprint(after) != fmt.Sprint(before) {
					t.Error("the database or its WAL was changed")
				}
				var closing atomic.Bool
				closed := make(chan struct{})
				time.AfterFunc(300*time.Millisecond, func() {
					closing.Store(true)
					other.close()
					close(closed)
				})
				e, err := OpenEngine(lock, opts)
				if !closing.Load() {
					t.Error("opened while another program had it open")
				}
				<-closed
				if err != nil {
					t.Fatal(err)
				}
				if err := e.Close(); err != nil {
					t.Fatal(err)
				}
				lock.Close()
				if got := newestOf(t, dir); got != want {
					t.Error("opened with other contents")
				}
			})
		}
	}
}

// While an engine runs, no other program can read its database, lock it, or checkpoint its WAL. The
// engine creates no -shm file. This remains true after calls of the engine's own methods, and after
// a start with the -shm file of a killed process.
func TestNobodyElseUsesTheDatabase(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, EngineFile+"-shm"), make([]byte, 32<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	e := openTest(t, dir, Options{CacheBytes: 1})
	refused := func(when string) {
		t.Helper()
		for _, statement := range []string{"BEGIN", "BEGIN IMMEDIATE", "PRAGMA journal_mode=DELETE"} {
			if _, err := hold(t, dir, statement); err == nil || !strings.Contains(err.Error(), "locked") {
				t.Errorf("%s, %s: got %v, want it refused", when, statement, err)
			}
		}
		if left := glob(t, dir, "*-shm"); len(left) > 0 {
			t.Errorf("%s: %v is there", when, left)
		}
	}
	refused("opened")
	put(t, e, "/a", strings.Repeat("v", 3<<20))
	wantValue(t, e, "/a", 0, strings.Repeat("v", 3<<20))
	refused("written")
	if _, err := backup.Verify(t.Context(), e.Source(), nil); err != nil {
		t.Error(err)
	}
	if _, err := backup.ReadStats(t.Context(), e.Source()); err != nil {
		t.Error(err)
	}
	if _, err := e.Backup(t.Context(), filepath.Join(t.TempDir(), "b")); err != nil {
		t.Error(err)
	}
	refused("looked at")
	if err := e.Compact(t.Context(), e.Revision(), true); err != nil {
		t.Error(err)
	}
	refused("compacted")
}
