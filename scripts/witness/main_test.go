package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// What a watch or a list lacks, and what was acknowledged and never seen, is found.
func TestCompareFindsWhatIsMissing(t *testing.T) {
	added, changed, gone := event{11, "ADDED", "w0"}, event{12, "MODIFIED", "w0"}, event{14, "DELETED", "w0"}
	complete := func() *segment {
		return &segment{from: 10, to: 14, listed: map[string]bool{}, events: []event{added, changed, gone}}
	}
	for want, other := range map[string]*segment{
		"": {from: 12, to: 14, listed: map[string]bool{"w0": true}, events: []event{gone}},
		"b: the watch from 10 to 14 lacks {12 MODIFIED w0}":             {from: 10, to: 14, events: []event{added, gone}},
		"b: the list at 11 lacks w0":                                    {from: 11, to: 14, events: []event{changed, gone}},
		"b: the list at 14 has w0, which is not there":                  {from: 14, to: 14, listed: map[string]bool{"w0": true}},
		"the watches have {12 MODIFIED w1} and {12 MODIFIED w0} at the": {from: 11, to: 12, listed: map[string]bool{"w0": true}, events: []event{{12, "MODIFIED", "w1"}}},
	} {
		w := &world{writes: []written{{"w0", 11}, {"w0", 12}, {"w0", 0}}}
		w.watchers = []*watcher{{server: &server{file: "a"}, segments: []*segment{complete()}}, {server: &server{file: "b"}, segments: []*segment{other}}}
		w.compare()
		if got := fmt.Sprint(w.err()); want == "" && w.err() != nil || !strings.Contains(got, want) {
			t.Errorf("%v, want %q", got, want)
		}
	}
	w := &world{writes: []written{{"w0", 13}}, watchers: []*watcher{{server: &server{file: "a"}, segments: []*segment{complete()}}}}
	if w.compare(); !strings.Contains(fmt.Sprint(w.err()), "no watch has the acknowledged write of w0 at 13") {
		t.Errorf("%v, want that no watch has a write", w.err())
	}
}

// Two logs with writes of controllers at the same time are found. What others write does not count.
func TestLeadersFindsTwoAtOnce(t *testing.T) {
	logOf := func(seconds ...int) string {
		file := filepath.Join(t.TempDir(), "audit")
		var text strings.Builder
		for _, s := range seconds {
			for _, user := range []string{"system:kube-scheduler", "system:serviceaccount:kube-system:replicaset-controller"} {
				fmt.Fprintf(&text, `{"stage":"ResponseComplete","verb":"create","stageTimestamp":%q,"user":{"username":%q},"objectRef":{"resource":"pods"},"responseStatus":{"code":201}}`+"\n",
					time.Unix(int64(s), 0).UTC().Format(time.RFC3339Nano), user)
			}
		}
		fmt.Fprintf(&text, `{"stage":"ResponseComplete","verb":"create","stageTimestamp":"2100-01-01T00:00:00Z","user":{"username":"admin"},"responseStatus":{"code":201}}`+"\n")
		if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	if err := leaders([]string{logOf(1, 2), logOf(5, 6), logOf(3, 4)}); err != nil {
		t.Error(err)
	}
	if err := leaders([]string{logOf(1, 3), logOf(2, 6)}); err == nil || !strings.Contains(err.Error(), "the controllers acted at") || !strings.Contains(err.Error(), "the scheduler acted at") {
		t.Errorf("%v, want that both acted at the same time", err)
	}
	if err := leaders([]string{logOf(1, 3), logOf()}); err == nil {
		t.Error("one log with writes is nothing to compare")
	}
}
