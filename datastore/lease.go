package datastore

import (
	"container/heap"
	"context"
	"fmt"
	"math/rand/v2"
	"time"
)

// Lease is a promise to keep keys alive: when its time runs out, they are
// deleted. Time is the monotonic clock's, so setting the machine's clock does
// nothing; after a start every lease has its whole TTL again, as in etcd.
type Lease struct {
	ID        int64
	TTL       int64         // seconds granted
	Remaining time.Duration // until it expires; not above TTL
	Keys      []string      // attached, if asked for
}

type lease struct {
	id, ttl int64
	expires time.Time
	keys    map[string]struct{}
}

// leaseChange is a row of the lease table to write or delete, and how to undo it.
type leaseChange struct {
	id, ttl int64
	revoked bool
	lease   *lease
}

// leaseTable is the speculative state of the leases; Engine.mu guards it. One
// timer stands at the earliest expiry; without leases there is none.
type leaseTable struct {
	byID    map[int64]*lease
	due     dueHeap
	timer   *time.Timer
	expire  func()
	pause   time.Time // no expiry before it: the last one found no space
	stopped bool
}

func (t *leaseTable) init(e *Engine, rows []leaseChange, live *tree) {
	t.byID = map[int64]*lease{}
	t.expire = e.expireLeases
	for _, row := range rows {
		t.grant(row.id, row.ttl)
	}
	t.attachAll(live)
}

func (t *leaseTable) find(id int64) *lease { return t.byID[id] }

func (t *leaseTable) grant(id, ttl int64) *lease {
	l := &lease{id: id, ttl: ttl, keys: map[string]struct{}{}}
	t.byID[id] = l
	t.renew(l)
	return l
}

func (t *leaseTable) renew(l *lease) {
	l.expires = time.Now().Add(time.Duration(l.ttl) * time.Second)
	heap.Push(&t.due, due{l.expires, l})
	t.arm()
}

// arm sets the timer to the earliest expiry, skipping entries that a renewal or
// a revocation has made void.
func (t *leaseTable) arm() {
	for len(t.due) > 0 && !t.due[0].valid(t) {
		heap.Pop(&t.due)
	}
	if t.stopped {
		return
	}
	if len(t.due) == 0 {
		if t.timer != nil {
			t.timer.Stop()
		}
		return
	}
	wait := max(time.Until(t.due[0].at), time.Until(t.pause), 0)
	if t.timer == nil {
		t.timer = time.AfterFunc(wait, t.expire)
		return
	}
	t.timer.Reset(wait)
}

func (t *leaseTable) stop() {
	t.stopped = true
	if t.timer != nil {
		t.timer.Stop()
	}
}

// undo takes back the changes of a batch that was not committed.
func (t *leaseTable) undo(changes []leaseChange) {
	for i := len(changes) - 1; i >= 0; i-- {
		c := changes[i]
		if c.revoked {
			t.byID[c.id] = c.lease
			heap.Push(&t.due, due{c.lease.expires, c.lease})
		} else {
			delete(t.byID, c.id)
		}
	}
	t.pause = time.Now().Add(time.Second)
	t.arm()
}

// attachAll makes the keys of every lease those of a state.
func (t *leaseTable) attachAll(live *tree) {
	for _, l := range t.byID {
		clear(l.keys)
	}
	if len(t.byID) == 0 {
		return
	}
	live.Scan(func(key string, v *version) bool {
		if l := t.byID[v.lease]; v.lease != 0 && l != nil {
			l.keys[key] = struct{}{}
		}
		return true
	})
}

func (e *Engine) attach(v *version) {
	if v.lease == 0 {
		return
	}
	if l := e.leases.byID[v.lease]; l != nil {
		l.keys[v.key] = struct{}{}
	}
}

func (e *Engine) detach(v *version) {
	if v == nil || v.lease == 0 {
		return
	}
	if l := e.leases.byID[v.lease]; l != nil {
		delete(l.keys, v.key)
	}
}

// Grant makes a lease of ttl seconds, at least 1. With id 0 the engine picks one.
func (e *Engine) Grant(ctx context.Context, id, ttl int64) (*Lease, error) {
	if ttl < 1 {
		return nil, fmt.Errorf("grant lease: a TTL of %d seconds is less than 1", ttl)
	}
	if id < 0 {
		return nil, fmt.Errorf("grant lease: id %d is negative", id)
	}
	wanted := id
	err := e.submit(ctx, func(b *batch) (bool, error) {
		if err := e.roomForPuts(); err != nil {
			return false, err
		}
		for id = wanted; id == 0 || wanted == 0 && e.leases.find(id) != nil; {
			id = rand.Int64()
		}
		if e.leases.find(id) != nil {
			return false, fmt.Errorf("%w: %d", ErrLeaseExists, id)
		}
		l := e.leases.grant(id, ttl)
		b.leases = append(b.leases, leaseChange{id: id, ttl: ttl, lease: l})
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return &Lease{ID: id, TTL: ttl, Remaining: time.Duration(ttl) * time.Second}, nil
}

// Revoke ends a lease and deletes its keys, in one revision (or several, if
// there are more keys than a revision can hold changes).
func (e *Engine) Revoke(ctx context.Context, id int64) error {
	return e.submit(ctx, func(b *batch) (bool, error) {
		l := e.leases.find(id)
		if l == nil {
			return false, fmt.Errorf("%w: %d", ErrLeaseNotFound, id)
		}
		e.revoke(b, l)
		return false, nil
	})
}

func (e *Engine) revoke(b *batch, l *lease) {
	delete(e.leases.byID, l.id)
	revision, sub := e.spec.revision+1, 0
	for _, key := range sortedKeys(l.keys) {
		if sub == maxSubs {
			revision, sub = revision+1, 0
		}
		e.change(b, &version{id: rowID(revision, sub), key: key}, nil)
		e.spec.revision = revision
		sub++
	}
	b.leases = append(b.leases, leaseChange{id: l.id, ttl: l.ttl, revoked: true, lease: l})
	e.leases.arm()
}

// KeepAlive gives a lease its whole TTL again. It writes nothing.
func (e *Engine) KeepAlive(id int64) (*Lease, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.refusal(); err != nil {
		return nil, err
	}
	l := e.leases.find(id)
	if l == nil || !time.Now().Before(l.expires) {
		return nil, fmt.Errorf("%w: %d", ErrLeaseNotFound, id)
	}
	e.leases.renew(l)
	return l.info(false), nil
}

// TimeToLive describes a lease, with its keys if asked to.
func (e *Engine) TimeToLive(id int64, keys bool) (*Lease, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.leases.find(id)
	if l == nil {
		return nil, fmt.Errorf("%w: %d", ErrLeaseNotFound, id)
	}
	return l.info(keys), nil
}

// Leases lists all leases, in no order and without their keys.
func (e *Engine) Leases() []Lease {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := make([]Lease, 0, len(e.leases.byID))
	for _, l := range e.leases.byID {
		out = append(out, *l.info(false))
	}
	return out
}

func (l *lease) info(keys bool) *Lease {
	out := &Lease{ID: l.id, TTL: l.ttl, Remaining: max(time.Until(l.expires), 0)}
	if keys {
		out.Keys = sortedKeys(l.keys)
	}
	return out
}

// expireLeases is the timer's: it revokes what has run out and sets the timer to
// the next. An error needs no handling here: a batch that found no space has set
// the timer again, and a failed or closed engine needs none.
func (e *Engine) expireLeases() {
	_ = e.submit(context.Background(), func(b *batch) (bool, error) {
		t := &e.leases
		for len(t.due) > 0 {
			first := t.due[0]
			if first.valid(t) && time.Now().Before(first.at) {
				break
			}
			heap.Pop(&t.due)
			if first.valid(t) {
				e.revoke(b, first.lease)
			}
		}
		t.arm()
		return false, nil
	})
}

// due is an entry of the expiry queue; it is void once its lease was renewed or
// is gone.
type due struct {
	at    time.Time
	lease *lease
}

func (d due) valid(t *leaseTable) bool {
	return t.byID[d.lease.id] == d.lease && d.lease.expires.Equal(d.at)
}

type dueHeap []due

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(due)) }
func (h *dueHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = due{}
	*h = old[:len(old)-1]
	return last
}
