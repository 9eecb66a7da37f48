package datastore

import (
	"bufio"
	"bytes"
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
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore/directory"
)

// TestMain runs a child of a test instead of the tests if the environment asks for one.
func TestMain(m *testing.M) {
	if dir := os.Getenv("KARVE_CRASH_DIR"); dir != "" {
		if err := crashChild(dir, os.Getenv("KARVE_CRASH_MODE")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// crashChild does a task in a durability mode (task-mode) until it is killed. Its journal is
// standard output, because the pipe outlives the process. It writes each line in one call. The
// first line is "open", the revision, and the milliseconds that the start took.
func crashChild(dir, mode string) error {
	if statement, ok := strings.CutPrefix(mode, holding); ok {
		return holdingChild(dir, statement)
	}
	if mode == faulty {
		return faultyChild(dir)
	}
	if mode == "restarts-full" {
		return restartingChild(dir)
	}
	lock, err := directory.Acquire(dir)
	if err != nil {
		return err
	}
	task, mode, _ := strings.Cut(mode, "-")
	opts := Options{BallastBytes: -1, CacheBytes: 4096}
	if mode == "relaxed" {
		opts.Durability = Relaxed
	}
	begin := time.Now()
	e, err := OpenEngine(lock, opts)
	if err != nil {
		return err
	}
	fmt.Printf("open %d %d\n", e.Revision(), time.Since(begin).Milliseconds())
	client, clients := crashClient, 8
	switch task {
	case "history":
		client, clients = historyClient, 5
	case "idle":
		client, clients = idleClient, 1
	}
	failed := make(chan error)
	for c := range clients {
		go func() { failed <- client(e, c) }()
	}
	return <-failed
}

// crashClient journals every write twice: before it (client, keys, value; a value ending in D
// deletes the second key), and after its acknowledgement (revision, client).
func crashClient(e *Engine, c int) error {
	random := rand.New(rand.NewPCG(rand.Uint64(), uint64(c)))
	for i := 0; ; i++ {
		revision, err := crashWrite(e, c, i, random)
		if err != nil {
			return err
		}
		if c == 0 && i%40 == 39 {
			if err := e.Compact(context.Background(), revision-10, false); err != nil {
				return err
			}
		}
	}
}

// crashWrite makes the i-th write of a client.
func crashWrite(e *Engine, c, i int, random *rand.Rand) (revision int64, err error) {
	// Two keys in one transaction would reveal half a revision.
	a, b := fmt.Sprintf("/c%d/%d", c, random.IntN(5)), fmt.Sprintf("/d%d/%d", c, random.IntN(5))
	value := strconv.FormatUint(random.Uint64(), 36) + strings.Repeat("x", random.IntN(2000))
	op := Op{Put: &PutRequest{Key: b, Value: []byte(value)}}
	if i%5 == 0 {
		op = Op{Delete: &DeleteRequest{Key: b}}
		value += "D"
	}
	fmt.Printf("try %d %s %s %s\n", c, a, b, value)
	resp, err := e.Txn(context.Background(), TxnRequest{Then: []Op{{Put: &PutRequest{Key: a, Value: []byte(value)}}, op}})
	if err != nil {
		return 0, err
	}
	fmt.Printf("ack %d %d\n", resp.Revision, c)
	return resp.Revision, nil
}

// TestCrash repeatedly kills a writing process and checks what the next start finds. KARVE_CRASHES
// sets the number of kills; the default is small.
func TestCrash(t *testing.T) {
	t.Parallel()
	crashes := 20
	if n, err := strconv.Atoi(os.Getenv("KARVE_CRASHES")); err == nil {
		crashes = n
	} else if testing.Short() {
		crashes = 4
	}
	for _, mode := range []string{"full", "relaxed"} {
		t.Run(mode, func(t *testing.T) {
			sweep(t, mode, crashes/2, func(int) []string { return nil })
		})
	}
}

// TestKilledAtSystemCall kills the writing process at its n-th write, fsync or truncation, for many
// n. The kills are between the steps of commits and checkpoints.
func TestKilledAtSystemCall(t *testing.T) {
	t.Parallel()
	strace := traceable(t)
	kills, stride := 12, 23
	if n, err := strconv.Atoi(os.Getenv("KARVE_CRASHES")); err == nil {
		kills, stride = n, 1
	} else if testing.Short() {
		kills, stride = 3, 97
	}
	for _, calls := range []string{"pwrite64", "fsync,fdatasync,ftruncate"} {
		t.Run(calls, func(t *testing.T) {
			sweep(t, "full", kills/2, func(n int) []string {
				return killAt(strace, calls, 1+n*stride)
			})
		})
	}
}

// killAt returns the start of a command line that kills a process at its n-th of some system calls.
func killAt(strace, calls string, n int) []string {
	return []string{strace, "-f", "-qq", "-o", os.DevNull, "-e", "trace=" + calls, "-e", fmt.Sprintf("inject=%s:signal=SIGKILL:when=%d", calls, n)}
}

// traceable returns the path of strace, or skips the test if strace does not work here.
func traceable(t *testing.T) string {
	t.Helper()
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed: no way to interfere with system calls")
	}
	if out, err := exec.Command(strace, "-f", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("strace may not trace here: %v: %s", err, out)
	}
	return strace
}

type acknowledged struct {
	revision int64
	a, b     string
	value    string
	deleted  bool
}

// startLimit is how long a start after a kill may take.
const startLimit = time.Second

func timedOpen(t *testing.T, dir string, opts Options) (*Engine, *directory.Lock, time.Duration) {
	t.Helper()
	begin := time.Now()
	e, lock := openLocked(t, dir, opts)
	return e, lock, time.Since(begin)
}

// replace makes to a copy of the directory from.
func replace(t *testing.T, to, from string) {
	t.Helper()
	if err := errors.Join(os.RemoveAll(to), os.CopyFS(to, os.DirFS(from))); err != nil {
		t.Fatal(err)
	}
}

func sweep(t *testing.T, mode string, crashes int, wrap func(n int) []string) {
	dir, copies := t.TempDir(), t.TempDir()
	left, again := filepath.Join(copies, "left"), filepath.Join(copies, "again")
	l := newLedger()
	writes := 0
	var slowest time.Duration
	for n := range crashes {
		acks, open := killedChild(t, dir, "crash-"+mode, time.Duration(rand.IntN(150))*time.Millisecond, l.last, wrap(n))
		if err := l.acknowledge(acks); err != nil {
			t.Fatalf("crash %d: %v", n, err)
		}
		writes += len(acks)
		opts := Options{Durability: map[string]Durability{"full": Full, "relaxed": Relaxed}[mode]}
		replace(t, left, dir)
		e, lock, took := timedOpen(t, dir, opts)
		// The machine may have been busy. The test starts a copy of what the kill left once
		// more. If that is fast, the engine is not the cause.
		for try := 0; took > startLimit && try < 20; try++ {
			replace(t, again, left)
			another, itsLock, second := timedOpen(t, again, opts)
			another.Close()
			itsLock.Close()
			took = min(took, second)
		}
		if took > startLimit {
			t.Errorf("crash %d: the start took %v at best, want less than %v", n, took, startLimit)
		}
		slowest = max(slowest, took)
		if err := l.compare(t, e, open); err != nil {
			t.Fatalf("crash %d: %v", n, err)
		}
		// Children that are killed early compact nothing. The rows of hundreds of them would
		// distort the measured time of a start.
		if n%10 == 9 {
			if err := e.Compact(t.Context(), e.Revision(), true); err != nil && !errors.Is(err, ErrCompacted) {
				t.Fatal(err)
			}
		}
		if n%2 == 0 {
			crash(t, e) // the next child then starts after two unclean stops
		} else if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		lock.Close()
	}
	t.Logf("%d kills, %d acknowledged writes, slowest start %v", crashes, writes, slowest.Round(time.Millisecond))
}

// A ledger records what a directory must contain after all acknowledged writes.
type ledger struct {
	newest map[string]int64 // by key, the newest acknowledged revision
	values map[string]string
	seen   map[int64]bool // revisions given out since the last comparison
	last   int64          // the newest of them
}

func newLedger() *ledger {
	return &ledger{newest: map[string]int64{}, values: map[string]string{}, seen: map[int64]bool{}}
}

// acknowledge records writes. It returns an error if a revision was used before.
func (l *ledger) acknowledge(acks []acknowledged) error {
	for _, ack := range acks {
		if ack.revision <= l.last || l.seen[ack.revision] {
			return fmt.Errorf("revision %d was given out again (the newest before the start was %d)", ack.revision, l.last)
		}
		l.seen[ack.revision] = true
		for _, key := range []string{ack.a, ack.b} {
			if ack.revision > l.newest[key] {
				l.newest[key] = ack.revision
				l.values[key] = ack.value
				if key == ack.b && ack.deleted {
					l.values[key] = ""
				}
			}
		}
	}
	return nil
}

// compare returns an error if a started engine lacks something of the ledger. Writes that were in
// flight may have happened or not. Afterwards the ledger has what the engine has.
func (l *ledger) compare(t *testing.T, e *Engine, open map[string]acknowledged) error {
	t.Helper()
	removed := map[string]bool{} // by a write that was in flight
	for _, try := range open {
		if try.deleted {
			removed[try.b] = true
		}
	}
	for revision := range l.seen {
		l.last = max(l.last, revision)
	}
	if e.Revision() < l.last {
		return fmt.Errorf("the revision went back from %d to %d", l.last, e.Revision())
	}
	for key, revision := range l.newest {
		// A later write that was not answered may have replaced it, but no earlier one.
		kv := get(t, e, key, 0)
		switch {
		case kv == nil && l.values[key] != "" && !removed[key]:
			return fmt.Errorf("%s, written at %d, is gone", key, revision)
		case kv != nil && kv.ModRevision < revision:
			return fmt.Errorf("%s is of revision %d, acknowledged was %d", key, kv.ModRevision, revision)
		case kv != nil && kv.ModRevision == revision && string(kv.Value) != l.values[key]:
			return fmt.Errorf("%s at %d has another value than was acknowledged", key, revision)
		}
	}
	for _, try := range open { // all of it, or nothing
		a, b := get(t, e, try.a, 0), get(t, e, try.b, 0)
		first := a != nil && string(a.Value) == try.value
		second := b != nil && string(b.Value) == try.value
		if try.deleted {
			second = b == nil
			first = first || second && l.values[try.b] == ""
		}
		if first != second {
			return fmt.Errorf("of a transaction in flight, %s and %s, a kill has left one half", try.a, try.b)
		}
	}
	for key := range l.newest {
		l.newest[key], l.values[key] = 0, ""
		if kv := get(t, e, key, 0); kv != nil {
			l.newest[key], l.values[key] = kv.ModRevision, string(kv.Value)
		}
	}
	l.last = max(l.last, e.Revision())
	clear(l.seen)
	return nil
}

// killedChild lets a child write for a while and kills it. It returns the acknowledged writes and
// those in flight. If there is a wrapper, the wrapper kills the child.
func killedChild(t *testing.T, dir, mode string, after time.Duration, last int64, wrapper []string) (acks []acknowledged, open map[string]acknowledged) {
	t.Helper()
	said := newTestimony()
	journal(t, dir, mode, after, wrapper, func(f []string) {
		if said.hear(f); said.opened < last {
			t.Errorf("a child started at revision %d, acknowledged was %d", said.opened, last)
		}
	})
	return said.acks, said.open
}

// A testimony is what the clients of a child wrote to its journal.
type testimony struct {
	opened int64 // the revision at the start
	acks   []acknowledged
	open   map[string]acknowledged // by client, the write in flight
	full   int                     // writes that were refused because the disk was full
	closed bool                    // the child has finished and closed the engine
}

func newTestimony() *testimony {
	return &testimony{opened: math.MaxInt64, open: map[string]acknowledged{}}
}

func (s *testimony) hear(f []string) {
	revision := int64(0)
	if len(f) > 1 {
		revision, _ = strconv.ParseInt(f[1], 10, 64)
	}
	switch f[0] {
	case "open":
		s.opened = revision
	case "try":
		s.open[f[1]] = acknowledged{a: f[2], b: f[3], value: f[4], deleted: strings.HasSuffix(f[4], "D")}
	case "ack":
		ack := s.open[f[2]]
		delete(s.open, f[2])
		ack.revision = revision
		s.acks = append(s.acks, ack)
	case "full":
		delete(s.open, f[1])
		s.full++
	case "closed":
		s.closed = true
	}
}

// journal runs a child in dir and calls line with the fields of every line of its journal. It kills
// the child some time after it has opened the datastore. If there is a wrapper, the wrapper kills
// the child.
func journal(t *testing.T, dir, mode string, after time.Duration, wrapper []string, line func(fields []string)) {
	t.Helper()
	said, err := runChild(t, dir, mode, wrapper, func(cmd *exec.Cmd, fields []string) {
		if fields[0] == "open" && wrapper == nil {
			time.AfterFunc(after, func() { cmd.Process.Kill() })
		}
		line(fields)
	})
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != -1 {
		t.Fatalf("the child ended by itself: %v: %s", err, said)
	}
}

// runChild runs a child in dir until it ends, and calls line with the fields of every line of its journal. wrapper begins its
// command line. runChild returns what the child wrote to standard error, and the error with which it ended.
func runChild(t *testing.T, dir, mode string, wrapper []string, line func(cmd *exec.Cmd, fields []string)) (said string, ended error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	args := append(wrapper, os.Args[0])
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "KARVE_CRASH_DIR="+dir, "KARVE_CRASH_MODE="+mode)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewReader(out); ; {
		text, err := lines.ReadString('\n')
		if err != nil {
			break // the end; an incomplete line acknowledges nothing
		}
		line(cmd, strings.Fields(text))
	}
	if ended = cmd.Wait(); ctx.Err() != nil {
		t.Fatalf("the child hangs; it said %s", &stderr)
	}
	return stderr.String(), ended
}
