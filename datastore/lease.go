package datastore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/tidwall/btree"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Lease keeps keys alive: when it expires, its keys are deleted. Its time is that of the monotonic clock, so
// setting the machine's clock has no effect. After a start every lease has its whole TTL again, as in etcd.
type Lease struct {
	ID        int64
	TTL       int64         // seconds granted
	Remaining time.Duration // until it expires
	Keys      []string      // attached keys, if asked for
}

type lease struct {
	id, ttl int64
	expires time.Time // changes only while the lease is not in leaseTable.due
	keys    map[string]struct{}
}

// sooner orders leases by their expiry.
func sooner(a, b *lease) bool {
	return a.expires.Before(b.expires) || a.expires.Equal(b.expires) && a.id < b.id
}

// leaseChange is a row of the lease table to write or delete, with the lease to undo it.
type leaseChange struct {
	id, ttl int64
	revoked bool
	lease   *lease
}

// leaseTable is the speculative state of the leases. Engine.mu guards it. One timer runs until the earliest
// expiry; without leases there is none.
type leaseTable struct {
	byID    map[int64]*lease
	due     *btree.BTreeG[*lease] // the same leases, the first to expire first
	timer   *time.Timer
	expire  func()
	pause   time.Time // no lease expires before it, because the disk was full
	stopped bool
}

func (t *leaseTable) init(e *Engine, ttls map[int64]int64, live *tree) {
	t.byID, t.due = map[int64]*lease{}, btree.NewBTreeG(sooner)
	t.expire = e.expireLeases
	for id, ttl := range ttls {
		t.grant(id, ttl)
	}
	t.attachAll(live)
}

func (t *leaseTable) find(id int64) *lease { return t.byID[id] }

func (t *leaseTable) grant(id, ttl int64) *lease {
	l := &lease{id: id, ttl: ttl, expires: fromNow(ttl), keys: map[string]struct{}{}}
	t.add(l)
	t.arm()
	return l
}

// add adds a lease. The caller arms the timer.
func (t *leaseTable) add(l *lease) {
	t.byID[l.id] = l
	t.due.Set(l)
}

// remove removes a lease. The caller arms the timer.
func (t *leaseTable) remove(l *lease) {
	delete(t.byID, l.id)
	t.due.Delete(l)
}

func (t *leaseTable) renew(l *lease) {
	t.due.Delete(l)
	l.expires = fromNow(l.ttl)
	t.due.Set(l)
	t.arm()
}

// fromNow returns a time with a reading of the monotonic clock.
func fromNow(seconds int64) time.Time { return time.Now().Add(time.Duration(seconds) * time.Second) }

// arm sets the timer to the earliest expiry.
func (t *leaseTable) arm() {
	if t.stopped {
		return
	}
	next, ok := t.due.Min()
	if !ok {
		if t.timer != nil {
			t.timer.Stop()
		}
		return
	}
	wait := max(time.Until(next.expires), time.Until(t.pause), 0)
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

// undo undoes the changes of a batch that was not committed.
func (t *leaseTable) undo(changes []leaseChange) {
	for i := len(changes) - 1; i >= 0; i-- {
		c := changes[i]
		if c.revoked {
			t.add(c.lease)
		} else {
			t.remove(c.lease)
		}
	}
	t.pause = time.Now().Add(time.Second)
	t.arm()
}

// attachAll sets the keys of all leases to those of an index.
func (t *leaseTable) attachAll(live *tree) {
	for _, l := range t.byID {
		clear(l.keys)
	}
	if len(t.byID) == 0 {
		return
	}
	live.Scan(func(key string, v *version) bool {
		if l := t.byID[v.Lease]; v.Lease != 0 && l != nil {
			l.keys[key] = struct{}{}
		}
		return true
	})
}

func (e *Engine) attach(v *version) {
	if v.Lease == 0 {
		return
	}
	if l := e.leases.byID[v.Lease]; l != nil {
		l.keys[v.Key] = struct{}{}
	}
}

func (e *Engine) detach(v *version) {
	if v == nil || v.Lease == 0 {
		return
	}
	if l := e.leases.byID[v.Lease]; l != nil {
		delete(l.keys, v.Key)
	}
}

// Grant makes a lease of ttl seconds, at least 1. With id 0 the engine chooses an id.
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

// Revoke ends a lease and deletes its keys in one revision, or in several if one revision cannot hold so many
// changes.
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
	e.leases.remove(l)
	revision, sub := e.spec.revision+1, 0
	for _, key := range sortedKeys(l.keys) {
		if sub == sqlitefile.MaxSubs {
			revision, sub = revision+1, 0
		}
		e.change(b, &version{Row: sqlitefile.Row{ID: sqlitefile.RowID(revision, sub), Key: key}}, nil)
		e.spec.revision = revision
		sub++
	}
	b.leases = append(b.leases, leaseChange{id: l.id, ttl: l.ttl, revoked: true, lease: l})
	e.leases.arm()
}

// KeepAlive gives a lease its whole TTL again, and writes nothing. A lease that has expired it revokes, as the
// timer is about to do, because the error "lease not found" must stay true after a crash.
func (e *Engine) KeepAlive(ctx context.Context, id int64) (*Lease, error) {
	var out *Lease
	err := e.submit(ctx, func(b *batch) (bool, error) {
		l := e.leases.find(id)
		if l == nil {
			return false, fmt.Errorf("%w: %d", ErrLeaseNotFound, id)
		}
		if !time.Now().Before(l.expires) {
			e.revoke(b, l)
			out = nil
			return false, nil
		}
		e.leases.renew(l)
		out = l.info(false)
		return false, nil
	})
	if err == nil && out == nil {
		err = fmt.Errorf("%w: %d", ErrLeaseNotFound, id)
	}
	if err != nil {
		return nil, err
	}
	return out, nil
}

// TimeToLive describes a lease. With keys, it lists the attached keys.
func (e *Engine) TimeToLive(ctx context.Context, id int64, keys bool) (*Lease, error) {
	var out *Lease
	err := e.submit(ctx, func(*batch) (bool, error) {
		l := e.leases.find(id)
		if l == nil {
			return false, fmt.Errorf("%w: %d", ErrLeaseNotFound, id)
		}
		out = l.info(keys)
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// Leases lists all leases in no order, without their keys.
func (e *Engine) Leases(ctx context.Context) ([]Lease, error) {
	var out []Lease
	err := e.submit(ctx, func(*batch) (bool, error) {
		out = make([]Lease, 0, len(e.leases.byID))
		for _, l := range e.leases.byID {
			out = append(out, *l.info(false))
		}
		return false, nil
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

func (l *lease) info(keys bool) *Lease {
	out := &Lease{ID: l.id, TTL: l.ttl, Remaining: max(time.Until(l.expires), 0)}
	if keys {
		out.Keys = sortedKeys(l.keys)
	}
	return out
}

// expireLeases revokes the leases that have expired and sets the timer to the next expiry. The timer calls it.
// It needs to handle no error: on a full disk undo has set the timer again, and a failed or closed engine needs
// no timer.
func (e *Engine) expireLeases() {
	_ = e.submit(context.Background(), func(b *batch) (bool, error) {
		t := &e.leases
		for l, ok := t.due.Min(); ok && !time.Now().Before(l.expires); l, ok = t.due.Min() {
			e.revoke(b, l)
		}
		t.arm()
		return false, nil
	})
}
