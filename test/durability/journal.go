package durability

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// A State is the last known state of an object: absent, or present with a value.
type State struct {
	Present  bool
	Value    string
	Revision int64
}

// String describes the state briefly.
func (s State) String() string {
	if !s.Present {
		return "absent"
	}
	return fmt.Sprintf("%.16s… at %d", s.Value, s.Revision)
}

// Observe returns the state of an object from a list.
func Observe(o Object) State { return State{true, o.Value(), o.Revision()} }

// A Journal records what a server has acknowledged, to compare it with what the server has after a
// kill. Each object has one writer at a time. Use NewJournal: the zero value does not work.
type Journal struct {
	mu        sync.Mutex
	known     map[string]State
	trying    map[string]State // sent, without an answer so far
	revisions map[int64]bool   // used since the last Compare
	newest    int64            // the newest acknowledged one
	floor     int64            // what newest was at the last Compare
	acks      int
}

// NewJournal returns an empty journal.
func NewJournal() *Journal {
	return &Journal{known: map[string]State{}, trying: map[string]State{}, revisions: map[int64]bool{}}
}

// Acks is the number of acknowledged writes.
func (j *Journal) Acks() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.acks
}

// Known returns the acknowledged state of an object, and whether a write to it has no answer yet.
func (j *Journal) Known(name string) (known State, open bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, open = j.trying[name]
	return j.known[name], open
}

// Try records that a request is about to be sent.
func (j *Journal) Try(name string, s State) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.trying[name] = s
}

// Refused records that the request had no effect.
func (j *Journal) Refused(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.trying, name)
}

// Acknowledge records an answer. It returns an error if the revision was used before. The answer to
// a deletion has no revision.
func (j *Journal) Acknowledge(name string, s State) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.trying, name)
	j.known[name] = s
	j.acks++
	if !s.Present {
		return nil
	}
	if s.Revision <= j.floor || j.revisions[s.Revision] {
		return fmt.Errorf("%s has revision %d, which was used before (the newest before the last start was %d)", name, s.Revision, j.floor)
	}
	j.revisions[s.Revision] = true
	j.newest = max(j.newest, s.Revision)
	return nil
}

// Compare reports what is lost, invented or outdated after a start, and then takes what the server
// has as known. No request may be in progress.
func (j *Journal) Compare(have map[string]State, revision int64) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	var wrong []error
	if revision < j.newest {
		wrong = append(wrong, fmt.Errorf("the server is at revision %d, and had acknowledged %d", revision, j.newest))
	}
	names := maps.Clone(j.known)
	maps.Copy(names, j.trying)
	maps.Copy(names, have)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		is, known := have[name], j.known[name]
		try, under := j.trying[name]
		switch {
		case is == known || !is.Present && !known.Present:
		case under && is.Present == try.Present && is.Value == try.Value && (!is.Present || is.Revision > known.Revision):
		default:
			text := fmt.Sprintf("%s: acknowledged as %v, is %v", name, known, is)
			if under {
				text += fmt.Sprintf("; %v had no answer", try)
			}
			wrong = append(wrong, errors.New(text))
		}
		if is.Present {
			j.known[name] = is
		} else {
			delete(j.known, name)
		}
	}
	clear(j.trying)
	clear(j.revisions)
	j.newest = max(j.newest, revision)
	j.floor = j.newest
	if len(wrong) > 10 {
		wrong = append(wrong[:10], fmt.Errorf("… and %d more", len(wrong)-10))
	}
	return errors.Join(wrong...)
}
