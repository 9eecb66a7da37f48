package lifecycle

import (
	"context"
	"fmt"
	"time"
)

// progressEvery is the interval between reports of a startup's progress. progressExtend is how long
// systemd waits for the next report. A slow board can take minutes to read a database. Without
// reports, systemd would kill the server after TimeoutStartSec= and start it again, for ever. It
// still kills a startup that makes no progress.
const (
	progressEvery  = 5 * time.Second
	progressExtend = 90 * time.Second
)

// Progress describes how far a startup is, for users who wait for it.
type Progress struct {
	// Part is the part that has been starting for the longest time.
	Part string
	// For is how long that part has been starting. Doing is its last report, such as
	// "reading the database: 40%"; empty if it has reported nothing.
	For   time.Duration
	Doing string
}

// tellProgress tells users every few seconds until ctx ends.
func (s *Start) tellProgress(ctx context.Context) {
	if s.Progress == nil {
		return
	}
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if at, ok := s.At(); ok {
			s.Progress(at)
		}
	}
}

// At returns the progress of the startup, or false if every part that has started is ready,
// or a shutdown has begun.
func (s *Start) At() (Progress, bool) {
	if s.IsStopping() {
		return Progress{}, false
	}
	for _, span := range s.Parts() {
		if span.Took != 0 {
			continue
		}
		at := Progress{Part: span.Part, For: time.Since(s.began) - span.Start}
		s.mu.Lock()
		defer s.mu.Unlock()
		at.Doing = s.doing[span.Part]
		if b := s.blocked[span.Part]; b != nil && b.reason != nil {
			at.Doing = b.reason.Error()
		}
		return at, true
	}
	return Progress{}, false
}

// Report records the progress of a part.
func (s *Start) Report(part, what string, done, total int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if total > 0 {
		what += fmt.Sprintf(": %d%%", 100*done/total)
	}
	s.doing[part] = what
	if time.Since(s.reported) < progressEvery {
		return
	}
	s.reported = time.Now()
	_ = s.systemd.ExtendTimeout(progressExtend) // if systemd cannot be reached, it does not kill this process either
	_ = s.systemd.Status(what)
}

// Waits records what a part waits for.
func (s *Start) Waits(part, text string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.doing[part] = text
	_ = s.systemd.Status(text)
}
