package server_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

// leakLimit is how long goroutines may take to end.
const leakLimit = 10 * time.Second

// leaks returns nil when nothing of Karve's runs in this process any more and no file below
// dir is open. It waits a few seconds for that. Upstream leaves goroutines of its own
// behind; they hold nothing of Karve's.
func leaks(dir string) error {
	for deadline := time.Now().Add(leakLimit); ; time.Sleep(10 * time.Millisecond) {
		left := karveGoroutines()
		if len(left) == 0 {
			return openFiles(dir)
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d goroutines of the cluster are left, the first:\n%s", len(left), left[0])
		}
	}
}

// karveGoroutines returns the stacks of those goroutines that are in a function of Karve's.
func karveGoroutines() []string {
	stacks := make([]byte, 64<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	var ours []string
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, "testing.(*T).Parallel(") {
			continue // a test that waits for its turn
		}
		ofOurs := func(name string) bool {
			return strings.Contains(stack, "/karve/"+name+".") || strings.Contains(stack, "/karve/"+name+"/") && !strings.Contains(stack, "_test.go")
		}
		if slices.ContainsFunc([]string{"server", "kine", "datastore", "certs", "bootstrap"}, ofOurs) {
			ours = append(ours, stack)
		}
	}
	return ours
}

// openFiles returns nil when this process has no file open below dir. Without /proc, it
// knows of none.
func openFiles(dir string) error {
	links, _ := filepath.Glob("/proc/self/fd/*")
	for _, link := range links {
		if path, err := os.Readlink(link); err == nil && strings.HasPrefix(path, dir+string(filepath.Separator)) {
			return fmt.Errorf("still open after the stop: %s", path)
		}
	}
	return nil
}
