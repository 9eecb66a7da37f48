package snapshot_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/snapshot"
)

// What a child of the test does.
const (
	forkVariable    = "KARVE_TEST_FORK"    // SOURCE:DIRECTORY
	restoreVariable = "KARVE_TEST_RESTORE" // SOURCE:DIRECTORY
)

func TestMain(m *testing.M) {
	if source, dir, ok := strings.Cut(os.Getenv(restoreVariable), ":"); ok {
		runtime.LockOSThread() // strace counts the calls of each thread
		fmt.Print("done ", restored(context.Background(), source, dir))
		return
	}
	if source, dir, ok := strings.Cut(os.Getenv(forkVariable), ":"); ok {
		_, err := snapshot.Fork(context.Background(), source, target(dir, dir))
		fmt.Print("done ", err)
		return
	}
	os.Exit(m.Run())
}

// A power cut may lose every name that no fsync of its directory has made durable, and keep
// any other. So the kernel has to see these steps in this order.
func TestForkIsDurableInOrder(t *testing.T) {
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("strace is not installed: no way to see the order of system calls")
	}
	if out, err := exec.Command(strace, "-f", "-o", os.DevNull, "true").CombinedOutput(); err != nil {
		t.Skipf("strace may not trace here: %v: %s", err, out)
	}
	file, dir := made(t, cluster(t)), t.TempDir()
	trace := filepath.Join(t.TempDir(), "trace")
	cmd := exec.Command(strace, "-f", "-y", "-qq", "-o", trace, "-e", "trace=fsync,fdatasync,/^rename,/^link,/^unlink,/^mkdir,openat", os.Args[0])
	cmd.Env = append(os.Environ(), forkVariable+"="+file+":"+dir)
	if out, err := cmd.Output(); err != nil || string(out) != "done <nil>" {
		t.Fatalf("%s, %v", out, err)
	}
	text, err := os.ReadFile(trace)
	if err != nil {
		t.Fatal(err)
	}
	steps := stepsIn(string(text), dir)
	at := func(step string, from int) int {
		i := slices.Index(steps[from:], step)
		if i < 0 {
			t.Fatalf("there is no %q after step %d of\n%s", step, from, strings.Join(steps, "\n"))
		}
		return from + i
	}
	// The mark, and its name, before anything that it marks.
	marked := at("name fork-unfinished", 0)
	durable := at("sync .", marked)
	for _, later := range []string{"name " + snapshot.FileName, "make certs", "name " + datastore.EngineFile, "name fork-of"} {
		if i := at(later, 0); i < durable {
			t.Errorf("%q is step %d, before the mark is durable at step %d", later, i, durable)
		}
	}
	// Every other name before the last file, and that one before the removal of the mark.
	last, gone := at("name fork-of", 0), at("remove fork-unfinished", 0)
	for _, step := range []struct {
		name, in string
		before   int
	}{
		{snapshot.FileName, ".", last}, {datastore.EngineFile, ".", last}, {"certs/ca.key", "certs", last},
		{"certs/service-account.key", "certs", last}, {"fork-of", ".", gone},
	} {
		if i := at("sync "+step.in, at("name "+step.name, 0)); i > step.before {
			t.Errorf("the name of %s is durable at step %d, after step %d", step.name, i, step.before)
		}
	}
	if i := at("sync .", at("make certs", 0)); i > last {
		t.Errorf("certs is durable at step %d, after step %d", i, last)
	}
	// A file has its contents before its name.
	for step := range slices.Values(steps) {
		if name, ok := strings.CutPrefix(step, "unsynced "); ok {
			t.Errorf("%s gets its name before its content is durable", name)
		}
	}
	// The removal is durable when Fork returns.
	at("sync .", gone)
	if t.Failed() {
		t.Log(strings.Join(steps, "\n"))
	}
}

var (
	syncCall   = regexp.MustCompile(`f(?:data)?sync\(\d+<([^>]*)>`)
	madeCall   = regexp.MustCompile(`(?:mkdir|mkdirat|openat)\([^"]*"([^"]*)", (\S.*)`)
	nameCall   = regexp.MustCompile(`(?:rename\w*|link\w*)\([^"]*"([^"]*)", [^"]*"([^"]*)"`)
	removeCall = regexp.MustCompile(`unlink\w*\([^"]*"([^"]*)"`)
)

// stepsIn returns the calls about files below dir: "make", "sync", "name" and "remove",
// with a path in it. It adds "unsynced" where a file gets its name unsynced.
func stepsIn(trace, dir string) []string {
	var steps []string
	synced := map[string]bool{}
	add := func(step, path string) {
		if name, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(name) {
			steps = append(steps, step+" "+name)
		}
	}
	for line := range strings.Lines(trace) {
		if m := syncCall.FindStringSubmatch(line); m != nil {
			add("sync", m[1])
			synced[m[1]] = true
		} else if m := nameCall.FindStringSubmatch(line); m != nil {
			if !synced[m[1]] {
				add("unsynced", m[2])
			}
			add("name", m[2])
		} else if m := removeCall.FindStringSubmatch(line); m != nil {
			add("remove", m[1])
		} else if m := madeCall.FindStringSubmatch(line); m != nil && (strings.Contains(line, "mkdir") || strings.Contains(m[2], "O_CREAT")) {
			add("make", m[1])
		}
	}
	return steps
}
