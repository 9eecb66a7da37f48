package datastore

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// faulty is the mode of a child that runs on a disk with faults.
const faulty = "faulty-full"

// faultyWrites is the number of writes of each of its clients.
const faultyWrites = 200

// faultyChild writes, reads and compacts with several clients. When each has made its writes, it
// closes the engine. It continues after a write that the full disk refused, and ends at any other
// error.
func faultyChild(dir string) error {
	lock, err := directory.Acquire(dir)
	if err != nil {
		return err
	}
	defer lock.Close()
	e, err := OpenEngine(lock, Options{BallastBytes: -1, CacheBytes: 4096})
	if err != nil {
		return err
	}
	fmt.Printf("open %d\n", e.Revision())
	const clients = 4
	failed := make([]error, clients)
	var work sync.WaitGroup
	for c := range clients {
		work.Go(func() { failed[c] = faultyClient(e, c) })
	}
	work.Wait()
	err = e.Close()
	if sqlitefile.IsFull(err) {
		err = nil // the mark of a clean stop is missing, so the next start reads the WAL
	}
	if err := errors.Join(append(failed, err)...); err != nil {
		return err
	}
	fmt.Println("closed")
	return nil
}

func faultyClient(e *Engine, c int) error {
	random := rand.New(rand.NewPCG(rand.Uint64(), uint64(c)))
	patience := time.Now().Add(time.Minute)
	for i := 0; i < faultyWrites; {
		revision, err := crashWrite(e, c, i, random)
		if errors.Is(err, ErrNoSpace) && time.Now().Before(patience) {
			fmt.Printf("full %d\n", c)
			time.Sleep(10 * time.Millisecond) // as a client that tries again
			continue
		} else if err != nil {
			return err
		}
		i++
		if i%10 == 0 { // values that are no longer in the cache
			if _, err := e.Range(context.Background(), RangeRequest{Key: "/c", End: "/e", Limit: 20}); err != nil {
				return err
			}
		}
		if c == 0 && i%40 == 0 {
			if err := e.Compact(context.Background(), revision-10, false); err != nil && !errors.Is(err, ErrNoSpace) {
				return err
			}
		}
	}
	return nil
}

// A fault is a result that the system returns for some calls on the engine's files.
type fault struct {
	calls  string
	file   string // suffix of the engine's file
	inject string // in the syntax of strace
	passes bool   // an engine that has started continues by itself when the fault is over
}

// Faults begin at the n-th call, for several n: during startup as well as under load. SQLite takes
// a write that writes nothing for a full disk.
var faults = map[string]fault{
	"EIO when the WAL is written":        {calls: "pwrite64", file: "-wal", inject: "error=EIO:when=%d+"},
	"EIO once when the WAL is written":   {calls: "pwrite64", file: "-wal", inject: "error=EIO:when=%d"},
	"EIO when the database is written":   {calls: "pwrite64", file: "", inject: "error=EIO:when=%d+"},
	"EIO when the WAL is synced":         {calls: "fsync,fdatasync", file: "-wal", inject: "error=EIO:when=%d+"},
	"ENOSPC when the WAL is synced":      {calls: "fsync,fdatasync", file: "-wal", inject: "error=ENOSPC:when=%d+"},
	"EIO when the database is synced":    {calls: "fsync,fdatasync", file: "", inject: "error=EIO:when=%d+"},
	"EIO when the WAL is read":           {calls: "pread64", file: "-wal", inject: "error=EIO:when=%d+"},
	"EIO when the database is read":      {calls: "pread64", file: "", inject: "error=EIO:when=%d+"},
	"EIO when the WAL is cut off":        {calls: "ftruncate", file: "-wal", inject: "error=EIO:when=%d+"},
	"ENOSPC when the WAL is written":     {calls: "pwrite64", file: "-wal", inject: "error=ENOSPC:when=%d..%d", passes: true},
	"ENOSPC when the database is":        {calls: "pwrite64", file: "", inject: "error=ENOSPC:when=%d..%d", passes: true},
	"EDQUOT when the WAL is written":     {calls: "pwrite64", file: "-wal", inject: "error=EDQUOT:when=%d..%d", passes: true},
	"EDQUOT when the database is":        {calls: "pwrite64", file: "", inject: "error=EDQUOT:when=%d..%d", passes: true},
	"nothing is written to the WAL":      {calls: "pwrite64", file: "-wal", inject: "retval=0:when=%d..%d", passes: true},
	"nothing is written to the database": {calls: "pwrite64", file: "", inject: "retval=0:when=%d..%d", passes: true},
}

// TestDiskFaults makes a disk fail in many ways on several file systems. The engine continues after
// the faults that it promises to survive, and otherwise ends. The next start has everything that
// was acknowledged, no revision is used twice, and nothing is damaged.
func TestDiskFaults(t *testing.T) {
	t.Parallel() // it mostly waits for disks and processes, as do the others that have this line
	if testing.Short() {
		t.Skip("kills a process under strace for each fault on four file systems")
	}
	strace := traceable(t)
	counts := []int{1 + rand.IntN(150)}
	if n, err := strconv.Atoi(os.Getenv("KARVE_CRASHES")); err == nil {
		counts = nil
		for i := range max(2, n/20) {
			counts = append(counts, 1+i*i+rand.IntN(1+i))
		}
	}
	for _, system := range []string{"here", "ext4", "xfs", "btrfs"} {
		t.Run(system, func(t *testing.T) {
			t.Parallel()
			root := t.TempDir()
			if system != "here" {
				root = loopMount(t, system)
			}
			for name, f := range faults {
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					dir := filepath.Join(root, strings.ReplaceAll(name, " ", "-"))
					if err := os.Mkdir(dir, 0o700); err != nil {
						t.Fatal(err)
					}
					l := newLedger()
					for _, n := range counts {
						f.run(t, strace, dir, n, l)
					}
				})
			}
		})
	}
}

// run runs a child with the fault, and checks what it has left.
func (f fault) run(t *testing.T, strace, dir string, n int, l *ledger) {
	t.Helper()
	when := fmt.Sprintf(strings.Replace(f.inject, "..%d", fmt.Sprintf("..%d", n+3), 1), n)
	heard := newTestimony()
	said, ended := runChild(t, dir, faulty, []string{
		strace, "-f", "-qq", "-o", os.DevNull, "-P", filepath.Join(dir, EngineFile) + f.file,
		"-e", "trace=" + f.calls, "-e", "inject=" + f.calls + ":" + when,
	}, func(_ *exec.Cmd, fields []string) { heard.hear(fields) })
	if heard.opened != 0 && heard.opened < l.last {
		t.Errorf("%s: the child started at revision %d, acknowledged was %d", when, heard.opened, l.last)
	}
	switch {
	case ended == nil && !heard.closed:
		t.Errorf("%s: the child ended without a word", when)
	case heard.full > 0 && strings.HasPrefix(f.calls, "fsync"):
		t.Errorf("%s: the engine takes a failed sync for a full disk, and continues", when)
	case f.passes && heard.opened == math.MaxInt64 && strings.Contains(said, ErrNoSpace.Error()):
		// A start may be refused: nothing was acknowledged, and the next one tries again.
	case f.passes && ended != nil:
		t.Errorf("%s: the engine did not continue: %v: %s", when, ended, said)
	case ended != nil && (strings.Contains(said, "panic") || !strings.Contains(said, EngineFile) && !strings.Contains(said, ErrUnknownOutcome.Error())):
		t.Errorf("%s: the child ended with %v and said %s; want an error of the disk", when, ended, said)
	case strings.Count(said, ErrCorrupt.Error()) > strings.Count(said, "its disk fails to read"):
		t.Errorf("%s: the child takes intact data for damaged: %s", when, said)
	}
	if err := afterFault(t, dir, heard, l); err != nil {
		t.Errorf("%s: %v", when, err)
	}
	t.Logf("%s: %d writes acknowledged, %d without room; the child ended with %v", when, len(heard.acks), heard.full, ended)
}

// afterFault starts the engine on a disk without faults. It returns an error if the contents that
// the child has left are wrong.
func afterFault(t *testing.T, dir string, heard *testimony, l *ledger) error {
	t.Helper()
	err := l.acknowledge(heard.acks)
	e, lock := openLocked(t, dir, Options{})
	if err := errors.Join(err, l.compare(t, e, heard.open), e.Close(), lock.Close()); err != nil {
		return err
	}
	report, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(filepath.Join(dir, EngineFile)), nil)
	if err == nil && len(report.Problems) > 0 {
		err = fmt.Errorf("the next start leaves %q", report.Problems)
	}
	return err
}
