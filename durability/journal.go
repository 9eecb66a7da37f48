package durability

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
)

// A State is what one object was last known to be: absent, or with this value.
type State struct {
	Present  bool
	Value    string
	Revision int64
}

// String is short.
func (s State) String() string {
	if !s.Present {
		return "absent"
	}
	return fmt.Sprintf("%.16s… at %d", s.Value, s.Revision)
}

// Observe is the state of an object that a list has.
func Observe(o Object) State { return State{true, o.Value(), o.Revision()} }

// A Journal keeps what a server has acknowledged, outside of that server, to compare
// it with what the server has after it was killed. Each object has one writer at a
// time. The zero value is not usable: see NewJournal.
type Journal struct {
	mu        sync.Mutex
	known     map[string]State
	trying    map[string]State // sent, and not answered
	revisions map[int64]bool   // given out since the last Compare
	newest    int64            // of all that were acknowledged
	floor     int64            // what newest was at the last Compare
	acks      int
}

// NewJournal returns an empty one.
func NewJournal() *Journal {
	return &Journal{known: map[string]State{}, trying: map[string]State{}, revisions: map[int64]bool{}}
}

// Acks is how many writes were acknowledged.
func (j *Journal) Acks() int {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.acks
}

// Known returns the acknowledged state of an object, and whether a write of it is
// still without an answer.
func (j *Journal) Known(name string) (known State, open bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	_, open = j.trying[name]
	return j.known[name], open
}

// Try notes that a request is about to be sent.
func (j *Journal) Try(name string, s State) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.trying[name] = s
}

// Refused notes that the request had no effect.
func (j *Journal) Refused(name string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	delete(j.trying, name)
}

// Acknowledge notes an answer. A revision that was given out before is an error;
// deletions are answered without one.
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
		return fmt.Errorf("%s was given revision %d, which had been given out already (the newest before the last start was %d)", name, s.Revision, j.floor)
	}
	j.revisions[s.Revision] = true
	j.newest = max(j.newest, s.Revision)
	return nil
}

// Compare reports what is lost, invented or outdated in what a server has after a
// start, and takes what it has as known. No request may be under way.
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
				text += fmt.Sprintf("; %v was without an answer", try)
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
