package datastore

import (
	"sort"
	"sync"
)

// watchGroup has the watchers of one range.
type watchGroup struct {
	key, end string
	all      map[*Watcher]bool // true: parked, waiting to be woken
	parked   int
}

type watchRange struct{ key, end string }

// watcherSet finds the watchers to wake for a key: by the key itself, by the lengths of prefixes in use, and one
// by one for ranges of any other form. Only parked watchers are woken. The cursor of a woken watcher moves to its
// event, past all changes outside its range.
type watcherSet struct {
	mu       sync.Mutex
	end      uint64 // end of the history for which watchers have been woken
	closed   bool
	parked   int
	groups   map[watchRange]*watchGroup
	keys     map[string]*watchGroup // watches of one key
	prefixes map[string]*watchGroup
	lengths  map[int]int // number of groups by length of prefix
	sorted   []int       // the lengths in order
	others   map[*watchGroup]bool
}

func (s *watcherSet) init() {
	s.groups = map[watchRange]*watchGroup{}
	s.keys = map[string]*watchGroup{}
	s.prefixes = map[string]*watchGroup{}
	s.lengths = map[int]int{}
	s.others = map[*watchGroup]bool{}
}

func (s *watcherSet) add(w *Watcher, key, end string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return ErrClosed
	}
	g := s.groups[watchRange{key, end}]
	if g == nil {
		g = &watchGroup{key: key, end: end, all: map[*Watcher]bool{}}
		s.groups[watchRange{key, end}] = g
		switch end {
		case "":
			s.keys[key] = g
		case PrefixEnd(key):
			s.prefixes[key] = g
			s.lengths[len(key)]++
			s.sortLengths()
		default:
			s.others[g] = true
		}
	}
	g.all[w] = false
	w.group = g
	return nil
}

func (s *watcherSet) sortLengths() {
	s.sorted = s.sorted[:0]
	for n := range s.lengths {
		s.sorted = append(s.sorted, n)
	}
	sort.Ints(s.sorted)
}

func (s *watcherSet) remove(w *Watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	g := w.group
	if _, ok := g.all[w]; !ok {
		return
	}
	s.release(w)
	delete(g.all, w)
	if len(g.all) > 0 {
		return
	}
	delete(s.groups, watchRange{g.key, g.end})
	switch g.end {
	case "":
		delete(s.keys, g.key)
	case PrefixEnd(g.key):
		delete(s.prefixes, g.key)
		if s.lengths[len(g.key)]--; s.lengths[len(g.key)] == 0 {
			delete(s.lengths, len(g.key))
			s.sortLengths()
		}
	default:
		delete(s.others, g)
	}
}

// park makes w wait for the next event of its range. It returns false if watchers have been woken for changes
// after seen, so that w has to read again first. If w is ahead, because it has read changes that are published but
// for which nobody has been woken yet, it will not be woken for those.
func (s *watcherSet) park(w *Watcher, seen uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.end > seen || w.closed.Load() || w.ask.Load() {
		return false
	}
	select {
	case <-w.wake: // from an unpark that nobody waited for
	default:
	}
	w.group.all[w] = true
	w.group.parked++
	s.parked++
	return true
}

// unpark wakes w without an event.
func (s *watcherSet) unpark(w *Watcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.group.all[w] {
		w.pos.Store(max(w.pos.Load(), s.end)) // for any event before, it would have been woken
		s.release(w)
	}
}

// release unparks w and wakes it.
func (s *watcherSet) release(w *Watcher) {
	if !w.group.all[w] {
		return
	}
	w.group.all[w] = false
	w.group.parked--
	s.parked--
	if w.woken != nil {
		w.woken()
		return
	}
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// notify wakes the watchers of the last n changes of a published state.
func (s *watcherSet) notify(snap *snapshot, n uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = snap.history.next
	for pos := s.end - n; pos < s.end && s.parked > 0; pos++ {
		v := snap.history.at(pos)
		if g := s.keys[v.Key]; g != nil {
			s.wakeGroup(g, v, pos)
		}
		for _, length := range s.sorted {
			if length > len(v.Key) {
				break
			}
			if g := s.prefixes[v.Key[:length]]; g != nil {
				s.wakeGroup(g, v, pos)
			}
		}
		for g := range s.others {
			if inRange(v.Key, g.key, g.end) {
				s.wakeGroup(g, v, pos)
			}
		}
	}
}

func (s *watcherSet) wakeGroup(g *watchGroup, v *version, pos uint64) {
	if g.parked == 0 {
		return
	}
	for w, parked := range g.all {
		if parked && v.Revision() >= w.start && pos >= w.pos.Load() {
			w.pos.Store(pos)
			s.release(w)
		}
	}
}

// closeAll ends every watch.
func (s *watcherSet) closeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, g := range s.groups {
		for w := range g.all {
			w.closed.Store(true)
			s.release(w)
		}
	}
}

// counts returns the number of watchers, and how many are behind by more than one response.
func (s *watcherSet) counts() (all, slow int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		for w, parked := range g.all {
			all++
			if !parked && s.end-w.pos.Load() > watchEvents && s.end > w.pos.Load() {
				slow++
			}
		}
	}
	return all, slow
}
