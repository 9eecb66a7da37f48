package insecure

import (
	"context"
	"net/http"
	"sync"
)

// tally counts what is in flight. Unlike a sync.WaitGroup, it can be waited for while more is
// coming, and with a deadline.
type tally struct {
	mu   sync.Mutex
	n    int
	zero chan struct{} // closed when n drops to zero; nil: nobody waits
}

func (t *tally) add(d int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n += d
	if t.n == 0 && t.zero != nil {
		close(t.zero)
		t.zero = nil
	}
}

func (t *tally) now() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// wait returns nil once nothing is in flight, or the reason why ctx ended before that.
func (t *tally) wait(ctx context.Context) error {
	t.mu.Lock()
	if t.n == 0 {
		t.mu.Unlock()
		return nil
	}
	if t.zero == nil {
		t.zero = make(chan struct{})
	}
	zero := t.zero
	t.mu.Unlock()
	select {
	case <-zero:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// count returns h with a count of its running calls.
func (t *tally) count(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t.add(1)
		defer t.add(-1)
		h.ServeHTTP(w, r)
	})
}
