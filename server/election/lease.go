package election

import (
	"bytes"
	"context"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
)

// lease is upstream's lock. It also knows how long others respect it, and when to try to take it.
type lease struct {
	resourcelock.Interface
	seen  func(holder string)
	over  func()                                           // is called when a campaign has ended
	look  func(context.Context) (holder string, err error) // beside the lock, whose version of the lease stays
	woken chan struct{}                                    // has a value if it is time for a try
	busy  chan struct{}                                    // has a value during a request
	// expiry wakes when another server has not renewed the lease for its duration.
	expiry *time.Timer

	clock    clock
	duration time.Duration // as upstream writes it into the lease: whole seconds
	last     []byte        // the record that Get has read

	mu    sync.Mutex
	held  moment    // until then
	claim time.Time // until then, others may respect a write of this server, even one without an answer
	term  *Term     // is extended with held
}

func newLease(lock resourcelock.Interface, look func(context.Context) (string, error), duration time.Duration) *lease {
	l := &lease{Interface: lock, look: look, woken: make(chan struct{}, 1), busy: make(chan struct{}, 1), clock: suspendedToo, duration: duration.Truncate(time.Second)}
	l.expiry = time.AfterFunc(time.Hour, l.wake)
	l.expiry.Stop()
	return l
}

// wake lets a candidate try to take the lease.
func (l *lease) wake() {
	select {
	case l.woken <- struct{}{}:
	default: // it will wake up
	}
}

// expiryMargin is the time between this package's look at a lease and the elector's.
const expiryMargin = 50 * time.Millisecond

// Get also tells who holds the lease. As for upstream's elector, the time of another server's lease
// begins when this one sees that the record has changed.
func (l *lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	l.busy <- struct{}{}
	r, raw, err := l.Interface.Get(ctx)
	<-l.busy
	if apierrors.IsNotFound(err) {
		l.taken()
	}
	if err != nil {
		return r, raw, err
	}
	if r.HolderIdentity != l.Identity() {
		l.taken()
	}
	if !bytes.Equal(raw, l.last) {
		l.last = raw
		l.expiry.Reset(time.Duration(r.LeaseDurationSeconds)*time.Second + expiryMargin)
	}
	l.seen(r.HolderIdentity)
	return r, raw, nil
}

// Create makes the lease, as this server's.
func (l *lease) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, r, l.Interface.Create)
}

// Update takes or renews the lease, or gives it back.
func (l *lease) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	return l.write(ctx, r, l.Interface.Update)
}

// write calls do. Others wait for the duration of the lease from the time at which they see the
// write. They cannot see it before it is sent.
func (l *lease) write(ctx context.Context, r resourcelock.LeaderElectionRecord, do func(context.Context, resourcelock.LeaderElectionRecord) error) error {
	l.busy <- struct{}{}
	sent := l.clock.now()
	err := do(ctx, r)
	<-l.busy
	l.mu.Lock()
	defer l.mu.Unlock()
	mine := r.HolderIdentity == l.Identity()
	if mine && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		l.claim = time.Now().Add(l.duration)
	}
	if err != nil {
		return err
	}
	if !mine {
		l.held, l.claim = moment{}, time.Time{}
		return nil
	}
	l.held = sent.add(l.duration)
	if l.term != nil {
		l.term.extend(l.held)
	}
	return nil
}

// taken ends the term, if one runs: another server need not wait any more. Only what was read after the
// term began shows that.
func (l *lease) taken() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.held = moment{}
	if l.term != nil {
		l.term.end(errTaken)
	}
}

// guard looks at the lease whenever it may have changed, and ends the term if it no longer names this
// server. It returns when the term has ended. A watch only says that the lease has changed, which may have
// been before the term.
func (l *lease) guard(term *Term) {
	for {
		select {
		case <-l.woken:
		case <-term.Done():
			return
		}
		holder, err := l.look(term.ctx)
		if err == nil && holder != l.Identity() {
			term.end(errTaken)
		}
	}
}

// RecordEvent reports that this server has become the leader. Upstream also reports that it was the
// leader. Then it stops, or cannot reach the datastore, and the next leader reports the same.
func (l *lease) RecordEvent(what string) {
	if what == "became leader" {
		l.Interface.RecordEvent(what)
	}
}

// until returns the time until which others respect the lease of this server.
func (l *lease) until() moment {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.held
}

// extend lets each renewal extend the term, too; nil is none.
func (l *lease) extend(t *Term) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.term = t; t != nil {
		t.extend(l.held)
	}
}

// releaseLimit is how long a stop tries to give the lease back. Without that, others wait for the
// duration of the lease.
const releaseLimit = 2 * time.Second

// release gives the lease back, as upstream does, if this server holds it. A write of the elector that was
// broken off may have been committed, and may even be committed meanwhile. It reports whether the lease
// could be reached, or needed no release.
func (l *lease) release(ctx context.Context) bool {
	l.mu.Lock()
	claimed := time.Now().Before(l.claim)
	l.mu.Unlock()
	if !claimed {
		return true
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseLimit)
	defer cancel()
	for {
		last, _, err := l.Interface.Get(ctx) // the newest version, which Update needs
		if apierrors.IsNotFound(err) || err == nil && last.HolderIdentity != l.Identity() {
			return true
		}
		if err == nil {
			now := metav1.Now()
			err = l.Update(ctx, resourcelock.LeaderElectionRecord{
				LeaderTransitions: last.LeaderTransitions, LeaseDurationSeconds: 1, RenewTime: now, AcquireTime: now,
			})
		}
		if apierrors.IsConflict(err) {
			continue
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "Failed to release lease", "lock", l.Describe())
		}
		return err == nil
	}
}

// between calls do while no request is under way, if that happens before ctx ends.
func (l *lease) between(ctx context.Context, do func()) {
	select {
	case l.busy <- struct{}{}:
		do()
		<-l.busy
	case <-ctx.Done():
	}
}
