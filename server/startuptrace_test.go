package server_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/server"
)

// traceEvents returns the names of the spans in a trace file.
func traceEvents(t *testing.T, path string) (names []string, unfinished []string) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var trace struct {
		TraceEvents []struct {
			Name, Ph string
			Args     map[string]any
		}
	}
	if err := json.Unmarshal(text, &trace); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	for _, e := range trace.TraceEvents {
		if e.Ph != "X" {
			continue
		}
		names = append(names, e.Name)
		if e.Args["unfinished"] == true {
			unfinished = append(unfinished, e.Name)
		}
	}
	return names, unfinished
}

func TestStartupTrace(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trace.json")
	c := start(t, func(c *server.Config) { c.StartupTrace = path })
	names, unfinished := traceEvents(t, path)
	for _, want := range []string{"configuration", "certificates", "datastore", "open", "API server", "kube-apiserver", "prepare to run", "controllers", "scheduler", "informers", "first objects"} {
		if !slices.Contains(names, want) {
			t.Errorf("got %v, want %s among them", names, want)
		}
	}
	if !slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, "poststarthook/") }) {
		t.Errorf("got %v, want a post-start hook among them", names)
	}
	if len(unfinished) > 0 {
		t.Errorf("unfinished: got %v, want none of a start that is over", unfinished)
	}
	if len(c.Slowest) != 3 || c.Slowest[0].Took < c.Slowest[1].Took {
		t.Errorf("slowest: got %+v, want three, the slowest first", c.Slowest)
	}
}
