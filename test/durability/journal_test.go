package durability

import (
	"strings"
	"testing"
)

// Compare compares what a server has after a start with what it had acknowledged.
func TestJournalCompare(t *testing.T) {
	at := func(value string, revision int64) State { return State{true, value, revision} }
	for name, c := range map[string]struct {
		open     map[string]State // writes without an answer
		have     map[string]State
		revision int64
		wrong    string // in the error; empty: none
	}{
		"as acknowledged":          {have: map[string]State{"a": at("1", 5), "b": at("2", 6)}, revision: 6},
		"lost":                     {have: map[string]State{"a": at("1", 5)}, revision: 6, wrong: "b: acknowledged as"},
		"invented":                 {have: map[string]State{"a": at("1", 5), "b": at("2", 6), "c": at("4", 7)}, revision: 7, wrong: "c: acknowledged as absent"},
		"the revision is back":     {have: map[string]State{"a": at("1", 5), "b": at("2", 6)}, revision: 5, wrong: "had acknowledged 6"},
		"open, and carried out":    {open: map[string]State{"a": {true, "8", 0}}, have: map[string]State{"a": at("8", 9), "b": at("2", 6)}, revision: 9},
		"open, and something else": {open: map[string]State{"a": {true, "8", 0}}, have: map[string]State{"a": at("7", 9), "b": at("2", 6)}, revision: 9, wrong: "had no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			j := NewJournal()
			for _, write := range []struct {
				name  string
				state State
			}{{"gone", at("9", 4)}, {"gone", State{}}, {"a", at("1", 5)}, {"b", at("2", 6)}} {
				j.Try(write.name, write.state)
				if err := j.Acknowledge(write.name, write.state); err != nil {
					t.Fatal(err)
				}
			}
			for name, s := range c.open {
				j.Try(name, s)
			}
			err := j.Compare(c.have, c.revision)
			if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
				t.Errorf("got %v, want %q", err, c.wrong)
			}
			if err := j.Compare(c.have, max(c.revision, 6)); err != nil {
				t.Errorf("the second time: %v, want nothing new", err)
			}
		})
	}
}
