package startup

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
)

func TestTrace(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "trace.json")
	if err := os.WriteFile(path, []byte("an older one"), 0o644); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		trace := New(time.Now())
		store := trace.Part("datastore")
		time.Sleep(20 * time.Millisecond)
		step := trace.Step("datastore", "open")
		time.Sleep(10 * time.Millisecond)
		step()
		store()
		store() // the second call does nothing
		quick := trace.Part("certificates")
		time.Sleep(time.Millisecond)
		quick()
		trace.Part("API server")
		time.Sleep(5 * time.Millisecond)

		slowest := trace.Slowest(3)
		if len(slowest) != 2 || slowest[0].Part != "datastore" || slowest[0].Took != 30*time.Millisecond || slowest[1].Part != "certificates" {
			t.Errorf("slowest: got %+v, want datastore, 30 ms, and certificates", slowest)
		}
		if got := trace.Slowest(1); len(got) != 1 || got[0].Part != "datastore" {
			t.Errorf("the slowest: got %+v, want datastore", got)
		}
		if err := trace.Write(path); err != nil {
			t.Fatal(err)
		}
	})

	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode().Perm(); got != 0o600 {
		t.Errorf("mode: got %o, want 600", got)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got struct {
		TraceEvents []struct {
			Name, Ph string
			Ts, Dur  float64
			Tid      int
			Args     map[string]any
		}
	}
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	type span struct {
		ts, dur    float64
		tid        int
		unfinished bool
	}
	spans := map[string]span{}
	for _, e := range got.TraceEvents {
		if e.Ph == "X" {
			spans[e.Name] = span{e.Ts, e.Dur, e.Tid, e.Args["unfinished"] == true}
		}
	}
	want := map[string]span{
		"datastore":    {0, 30000, 1, false},
		"open":         {20000, 10000, 1, false},
		"certificates": {30000, 1000, 2, false},
		"API server":   {31000, 5000, 3, true},
	}
	for name, w := range want {
		if spans[name] != w {
			t.Errorf("%s: got %+v, want %+v", name, spans[name], w)
		}
	}
	if len(spans) != len(want) {
		t.Errorf("got %d spans, want %d: %v", len(spans), len(want), spans)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestTraceCanNotBeWritten(t *testing.T) {
	dir := t.TempDir()
	if err := New(time.Now()).Write(filepath.Join(dir, "missing", "trace.json")); err == nil {
		t.Error("in a directory that is not there: got no error")
	}
	path := filepath.Join(dir, "directory")
	if err := os.MkdirAll(filepath.Join(path, "full"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := New(time.Now()).Write(path); err == nil {
		t.Error("over a directory: got no error")
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

func TestNilTrace(t *testing.T) {
	var trace *Trace
	trace.Part("none")()
	trace.Step("none", "none")()
	if got := trace.Slowest(3); len(got) != 0 {
		t.Errorf("got %v, want none", got)
	}
}
