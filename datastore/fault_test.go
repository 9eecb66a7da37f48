package datastore

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
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

// faulty is the mode of a child that works on a disk with faults.
const faulty = "faulty-full"

// faultyWrites is how many writes each of its clients does.
const faultyWrites = 200

// faultyChild writes, reads and compacts with some clients until each has done its
// writes, and closes the engine. It goes on after a write that was not done for want
// of space, and ends at any other error.
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
		err = nil // it could not say that it was closed in order; the next start reads the WAL
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

// A fault is an answer of the system to some calls on the engine's files.
type fault struct {
	calls  string
	file   string // suffix of the engine's file
	inject string // as strace has it
	passes bool   // the engine goes on by itself once the fault is over
}

// faults are answered from the n-th call on, for some n: during the start as well as
// under load. A write that writes nothing is what SQLite makes of a full disk.
var faults = map[string]fault{
	"EIO when the WAL is written":        {calls: "pwrite64", file: "-wal", inject: "error=EIO:when=%d+"},
	"EIO once when the WAL is written":   {calls: "pwrite64", file: "-wal", inject: "error=EIO:when=%d"},
	"EIO when the database is written":   {calls: "pwrite64", file: "", inject: "error=EIO:when=%d+"},
	"EIO when the WAL is synced":         {calls: "fsync,fdatasync", file: "-wal", inject: "error=EIO:when=%d+"},
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

// TestDiskFaults lets a disk fail in many ways on several file systems: the engine goes
// on where it says that it does, and else ends; the next start has all that was
// acknowledged, no revision is given out twice, and nothing is damaged.
func TestDiskFaults(t *testing.T) {
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
	for _, system := range []string{"ext4", "xfs", "btrfs", "f2fs"} {
		t.Run(system, func(t *testing.T) {
			root := loopMount(t, system)
			for name, f := range faults {
				t.Run(name, func(t *testing.T) {
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

// faultyRun lets a child work under a tracer until it ends, and calls each for every
// line of its journal.
func faultyRun(t *testing.T, dir string, tracer []string, each func(*testimony)) (heard *testimony, said string, ended error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, tracer[0], append(tracer[1:], os.Args[0])...)
	cmd.Env = append(os.Environ(), "KARVE_CRASH_DIR="+dir, "KARVE_CRASH_MODE="+faulty)
	var errors bytes.Buffer
	cmd.Stderr = &errors
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	heard = newTestimony()
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 0 {
			heard.hear(fields)
			each(heard)
		}
	}
	ended = cmd.Wait()
	if ctx.Err() != nil {
		t.Fatalf("the child hangs; it said %s", &errors)
	}
	return heard, errors.String(), ended
}

// run lets a child work while the fault lasts, and looks at what it has left.
func (f fault) run(t *testing.T, strace, dir string, n int, l *ledger) {
	t.Helper()
	when := fmt.Sprintf(strings.Replace(f.inject, "..%d", fmt.Sprintf("..%d", n+3), 1), n)
	heard, said, ended := faultyRun(t, dir, []string{
		strace, "-f", "-qq", "-o", os.DevNull, "-P", filepath.Join(dir, EngineFile) + f.file,
		"-e", "trace=" + f.calls, "-e", "inject=" + f.calls + ":" + when,
	}, func(*testimony) {})
	if heard.opened != 0 && heard.opened < l.last {
		t.Errorf("%s: the child started at revision %d, acknowledged was %d", when, heard.opened, l.last)
	}
	switch {
	case ended == nil && !heard.closed:
		t.Errorf("%s: the child ended without a word", when)
	case f.passes && ended != nil:
		t.Errorf("%s: the engine did not go on: %v: %s", when, ended, said)
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

// afterFault starts the engine on a sound disk, and says what is wrong with what a child
// has left.
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
