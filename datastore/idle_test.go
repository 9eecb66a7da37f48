package datastore

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
)

// idleClient brings a datastore into the state that a server has: written, compacted, watched, and
// with a lease that ends in a day. Then it does nothing more.
func idleClient(e *Engine, _ int) error {
	ctx := context.Background()
	lease, err := e.Grant(ctx, 0, 24*60*60)
	if err != nil {
		return err
	}
	for i := range 20 {
		prefix := fmt.Sprintf("/%d/", i%5)
		w, err := e.Watch(WatchRequest{Key: prefix, End: PrefixEnd(prefix)})
		if err != nil {
			return err
		}
		go func() {
			for {
				if _, err := w.Next(ctx); err != nil {
					return
				}
			}
		}()
	}
	for i := range 500 {
		put := PutRequest{Key: fmt.Sprintf("/%d/%d", i%5, i%50), Value: make([]byte, 1000), Lease: lease.ID * int64(i%2)}
		if _, err := e.Put(ctx, put); err != nil {
			return err
		}
	}
	if err := e.Compact(ctx, e.Revision(), true); err != nil {
		return err
	}
	debug.FreeOSMemory() // what Go's runtime would do in the background
	fmt.Println("idle")
	select {}
}

// activity is what a process has done so far, by the kernel's counters.
type activity struct {
	writes   int64 // system calls that write to a file, pipe or socket
	written  int64 // bytes that the process caused to be written to a disk
	switches int64 // context switches
	threads  int64
}

func activityOf(t *testing.T, pid int) (a activity) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/", pid)
	fields := func(file string) map[string]int64 {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]int64{}
		for line := range strings.Lines(string(text)) {
			name, value, _ := strings.Cut(line, ":")
			out[name], _ = strconv.ParseInt(strings.TrimSpace(value), 10, 64)
		}
		return out
	}
	io := fields(dir + "io")
	a.writes, a.written = io["syscw"], io["write_bytes"]
	threads, err := filepath.Glob(dir + "task/*/status")
	if err != nil || len(threads) == 0 {
		t.Fatalf("threads of process %d: %v, %v", pid, threads, err)
	}
	for _, thread := range threads {
		status := fields(thread)
		a.switches += status["voluntary_ctxt_switches"] + status["nonvoluntary_ctxt_switches"]
		a.threads++
	}
	return a
}

// idleTime is how long an engine must do nothing.
const idleTime = 2 * time.Second

// An idle engine writes nothing, and no thread of its process wakes up. So no timer fires. Go's runtime and the kernel may
// still have something to do in the first intervals.
func TestIdleEngineDoesNothing(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs Linux' figures of a process")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "KARVE_CRASH_DIR="+t.TempDir(), "KARVE_CRASH_MODE=idle-full")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	lines := bufio.NewScanner(out)
	for lines.Scan() && lines.Text() != "idle" {
	}
	if lines.Text() != "idle" {
		t.Fatalf("the child ended: %q", lines.Text())
	}
	time.Sleep(300 * time.Millisecond)
	var in activity
	for range 4 {
		before := activityOf(t, cmd.Process.Pid)
		time.Sleep(idleTime)
		after := activityOf(t, cmd.Process.Pid)
		in = activity{after.writes - before.writes, after.written - before.written, after.switches - before.switches, after.threads - before.threads}
		if in == (activity{}) {
			return
		}
	}
	t.Errorf("in %v: %+v, want nothing", idleTime, in)
}
