package datastore

import (
	"context"
	"sync"
)

// signal wakes goroutines that wait for the committer. While nobody waits, it has no channel.
type signal struct {
	mu   sync.Mutex
	next chan struct{}
}

// wait returns a channel that the next call of fire closes.
func (s *signal) wait() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next == nil {
		s.next = make(chan struct{})
	}
	return s.next
}

func (s *signal) fire() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.next != nil {
		close(s.next)
		s.next = nil
	}
}

// waitUntil waits until done returns true. changed fires whenever that may be so.
func (e *Engine) waitUntil(ctx context.Context, changed *signal, done func() bool) error {
	for {
		next := changed.wait()
		if done() {
			return nil
		}
		select {
		case <-next:
		case <-e.stopped:
			return ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
