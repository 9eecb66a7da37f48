package datastore

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// stoppable is an engine whose commits the test can hold.
type stoppable struct {
	*Engine
	begun   chan struct{} // closed when the commit that is held has begun
	outcome chan error    // the result of the commit
	armed   atomic.Bool
}

func openStoppable(t *testing.T) *stoppable {
	s := &stoppable{Engine: openTest(t, "", Options{}), begun: make(chan struct{}), outcome: make(chan error, 1)}
	s.file.OnStep(s.hold)
	put(t, s.Engine, "/there", "1")
	return s
}

// next makes the engine hold the next commit.
func (s *stoppable) next() { s.armed.Store(true) }

func (s *stoppable) hold(at string) error {
	if at != "begin" || !s.armed.CompareAndSwap(true, false) {
		return nil
	}
	close(s.begun)
	return <-s.outcome
}

// waiting is a context that reports when a caller waits for its end. A call of the engine does that
// after it has evaluated its request and before it answers.
type waiting struct {
	context.Context
	once  sync.Once
	waits chan struct{}
}

func (w *waiting) Done() <-chan struct{} {
	w.once.Do(func() { close(w.waits) })
	return w.Context.Done()
}

// Everything that an answer reveals is durable before the engine gives it. This includes refusals.
// Each case has a change that is held at its commit, and a request whose answer depends on it.
func TestRefusalsRevealOnlyWhatIsDurable(t *testing.T) {
	anything := func(ctx context.Context, e *Engine) error {
		_, err := e.Put(ctx, PutRequest{Key: "/leased", Value: []byte("1"), Lease: 7})
		return err
	}
	revoke := func(ctx context.Context, e *Engine) error { return e.Revoke(ctx, 7) }
	grant := func(ctx context.Context, e *Engine) error { _, err := e.Grant(ctx, 8, 100); return err }
	for name, test := range map[string]struct {
		change, ask func(context.Context, *Engine) error
		want        error // of ask, once change is durable
	}{
		"put with a lease that was revoked": {revoke, anything, ErrLeaseNotFound},
		"revoked again":                     {revoke, revoke, ErrLeaseNotFound},
		"renewal of what was revoked": {revoke, func(ctx context.Context, e *Engine) error {
			_, err := e.KeepAlive(ctx, 7)
			return err
		}, ErrLeaseNotFound},
		"look at what was revoked": {revoke, func(ctx context.Context, e *Engine) error {
			_, err := e.TimeToLive(ctx, 7, true)
			return err
		}, ErrLeaseNotFound},
		"granted again": {grant, grant, ErrLeaseExists},
		"renewal of what was granted": {grant, func(ctx context.Context, e *Engine) error {
			_, err := e.KeepAlive(ctx, 8)
			return err
		}, nil},
		"list of leases": {grant, func(ctx context.Context, e *Engine) error {
			all, err := e.Leases(ctx)
			if err == nil && len(all) != 2 {
				return errors.New("the lease is not in the list")
			}
			return err
		}, nil},
		"value of a deleted key": {
			func(ctx context.Context, e *Engine) error {
				_, err := e.Delete(ctx, DeleteRequest{Key: "/there"})
				return err
			},
			func(ctx context.Context, e *Engine) error {
				_, err := e.Put(ctx, PutRequest{Key: "/there", IgnoreValue: true})
				return err
			}, ErrKeyNotFound},
		"failed compare": {
			func(ctx context.Context, e *Engine) error {
				_, err := e.Put(ctx, PutRequest{Key: "/new"})
				return err
			},
			func(ctx context.Context, e *Engine) error {
				resp, err := e.Txn(ctx, TxnRequest{Compare: []Compare{{Key: "/new", Target: CompareVersion}}})
				if err == nil && resp.Succeeded {
					return errors.New("the key is not there")
				}
				return err
			}, nil},
		"compacted twice": {
			func(ctx context.Context, e *Engine) error { return e.Compact(ctx, 2, false) },
			func(ctx context.Context, e *Engine) error { return e.Compact(ctx, 2, false) },
			ErrCompacted},
	} {
		for outcome, failure := range map[string]error{"committed": nil, "failed": errors.New("input/output error")} {
			t.Run(name+", "+outcome, func(t *testing.T) {
				e := openStoppable(t)
				if _, err := e.Grant(t.Context(), 7, 100); err != nil {
					t.Fatal(err)
				}
				put(t, e.Engine, "/there", "2")
				e.next()
				changed, asked := make(chan error, 1), make(chan error, 1)
				go func() { changed <- test.change(context.Background(), e.Engine) }()
				<-e.begun
				ctx := &waiting{Context: context.Background(), waits: make(chan struct{})}
				go func() { asked <- test.ask(ctx, e.Engine) }()
				select {
				case <-ctx.waits:
				case err := <-asked:
					t.Errorf("answered %v before the change was durable", err)
					asked <- err
				}
				e.outcome <- failure
				got, want := <-asked, test.want
				if failure != nil {
					want = ErrUnknownOutcome
				}
				if !errors.Is(got, want) {
					t.Errorf("got %v, want %v", got, want)
				}
				if err := <-changed; failure == nil && err != nil || failure != nil && !errors.Is(err, ErrUnknownOutcome) {
					t.Errorf("the change: %v", err)
				}
			})
		}
	}
}

// If the disk has no space for a change, the engine evaluates a request that depends on it again,
// and does not refuse it because of the change.
func TestRefusalIsEvaluatedAgain(t *testing.T) {
	e := openStoppable(t)
	e.next()
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { _, err := e.Grant(context.Background(), 7, 100); first <- err }()
	<-e.begun
	ctx := &waiting{Context: context.Background(), waits: make(chan struct{})}
	go func() { _, err := e.Grant(ctx, 7, 100); second <- err }()
	select {
	case <-ctx.waits:
	case err := <-second:
		t.Errorf("answered %v while the first grant was on its way", err)
		second <- err
	}
	e.outcome <- ErrNoSpace
	if err := <-first; !errors.Is(err, ErrNoSpace) {
		t.Errorf("first grant: %v, want %v", err, ErrNoSpace)
	}
	// Once there is space again, a grant succeeds.
	if err := <-second; err != nil && !errors.Is(err, ErrNoSpace) {
		t.Errorf("second grant: %v, want none, or %v", err, ErrNoSpace)
	}
}

// An expired lease is revoked durably before a client gets the error that it is gone.
func TestRenewalAfterTheEndRevokes(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{})
	if _, err := e.Grant(t.Context(), 7, 1000); err != nil {
		t.Fatal(err)
	}
	if _, err := e.Put(t.Context(), PutRequest{Key: "/leased", Lease: 7}); err != nil {
		t.Fatal(err)
	}
	e.mu.Lock()
	e.leases.stop() // the timer is late
	l := e.leases.find(7)
	e.leases.due.Delete(l)
	l.expires = l.expires.Add(-1001 * time.Second)
	e.leases.due.Set(l)
	e.mu.Unlock()
	if _, err := e.KeepAlive(t.Context(), 7); !errors.Is(err, ErrLeaseNotFound) {
		t.Errorf("renewal: %v, want %v", err, ErrLeaseNotFound)
	}
	crash(t, e)
	lock.Close()
	e = openTest(t, dir, Options{})
	if _, err := e.TimeToLive(t.Context(), 7, false); !errors.Is(err, ErrLeaseNotFound) {
		t.Errorf("after a start: %v, want %v", err, ErrLeaseNotFound)
	}
	if get(t, e, "/leased", 0) != nil {
		t.Error("after a start the key of the lease is there")
	}
}
