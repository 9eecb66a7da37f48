package page

import (
	"sync"
	"sync/atomic"
	"time"
)

// minutes is how many minutes an Hour remembers before the present one.
const minutes = 60

// Hour has the figures of the last hour, minute by minute. Nothing wakes up for it: what happens counts itself, and the
// first event of a minute reads the memory. Its methods may be called by several goroutines.
type Hour struct {
	began  time.Time
	memory func() int64

	turning sync.Mutex // held while a slot becomes that of another minute
	slots   [minutes + 1]slot
}

type slot struct {
	minute                     atomic.Int64 // since began, plus 1; 0: never used
	requests, commits          atomic.Int64
	committing, longest, bytes atomic.Int64 // ns, ns, and bytes of memory
}

// NewHour begins an hour of a process that began then. memory returns what it uses at present.
func NewHour(began time.Time, memory func() int64) *Hour { return &Hour{began: began, memory: memory} }

// Request counts a request.
func (h *Hour) Request() { h.now().requests.Add(1) }

// Commit counts a commit of the datastore, and how long it took.
func (h *Hour) Commit(took time.Duration) {
	s := h.now()
	s.commits.Add(1)
	s.committing.Add(int64(took))
	for {
		longest := s.longest.Load()
		if int64(took) <= longest || s.longest.CompareAndSwap(longest, int64(took)) {
			return
		}
	}
}

func (h *Hour) now() *slot {
	minute := int64(time.Since(h.began)/time.Minute) + 1
	s := &h.slots[minute%int64(len(h.slots))]
	if s.minute.Load() != minute {
		h.turn(s, minute)
	}
	return s
}

// turn makes a slot that of a new minute.
func (h *Hour) turn(s *slot, minute int64) {
	h.turning.Lock()
	defer h.turning.Unlock()
	if s.minute.Load() >= minute {
		return
	}
	s.requests.Store(0)
	s.commits.Store(0)
	s.committing.Store(0)
	s.longest.Store(0)
	s.bytes.Store(h.memory())
	s.minute.Store(minute)
}

// Minute is what happened in a minute.
type Minute struct {
	Requests, Commits int64
	Mean, Longest     time.Duration // of the commits
	Memory            int64         // bytes at the first event; 0: there was none
}

// Last returns the minutes of the last hour, the present one last; fewer if the process is younger.
func (h *Hour) Last() []Minute {
	present := int64(time.Since(h.began)/time.Minute) + 1
	first := max(1, present-minutes)
	all := make([]Minute, present-first+1)
	for i := range all {
		minute := first + int64(i)
		s := &h.slots[minute%int64(len(h.slots))]
		if s.minute.Load() != minute {
			continue
		}
		m := &all[i]
		m.Requests, m.Commits, m.Longest, m.Memory = s.requests.Load(), s.commits.Load(), time.Duration(s.longest.Load()), s.bytes.Load()
		if m.Commits > 0 {
			m.Mean = time.Duration(s.committing.Load() / m.Commits)
		}
	}
	return all
}
