package datastore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// ResetOptions say what a reset does not change. The zero value excludes nothing.
type ResetOptions struct {
	// Keep reports whether a key stays as it is now, present or missing. both is true for a key that exists
	// now and in the dump.
	Keep func(key string, both bool) bool

	// Another reports whether two values of a key belong to two different objects. Then the present one is
	// deleted and the other one is created, and watchers see both events. Without it every change is an update.
	Another func(now, then []byte) bool
}

// Difference lists the keys that differ between a datastore and a dump, in order.
type Difference struct {
	Missing []string // only in the dump: to be created
	Changed []string // to be put as they were
	Surplus []string // not in the dump: to be deleted
}

// Len returns the number of keys that differ.
func (d *Difference) Len() int { return len(d.Missing) + len(d.Changed) + len(d.Surplus) }

// ResetResult describes what a reset has done.
type ResetResult struct {
	Difference
	Revision int64 // of the store, after it
	Took     time.Duration
}

// Reset brings the datastore back to the contents of a dump by ordinary changes: it puts and deletes what differs,
// each key in a revision of its own. So revisions only rise, watchers see every change, and no resourceVersion
// stands for two states. (If keys shared a revision, a client whose watch breaks between them would miss some.)
// All changes are one batch: they are on the disk as a whole or not at all, readers see them at the same time, and
// no other write comes in between. An API server's cache takes one revision after the other: a list from it may be of one in
// the middle.
//
// Reset deletes and creates keys in the order of their creation, so that an owner is deleted before the objects it
// owns are created again. A key that had a lease is attached to that lease, or, if it has expired, to a new one
// with the same id and the whole TTL.
func (e *Engine) Reset(ctx context.Context, to *Dump, opts ResetOptions) (*ResetResult, error) {
	begin := time.Now()
	out := &ResetResult{}
	err := e.submit(ctx, func(b *batch) (needsSpace bool, err error) {
		p, err := e.planReset(&e.spec, to, opts)
		if err != nil {
			return false, err
		}
		needsSpace = len(p.puts) > 0
		if needsSpace {
			if err := e.roomForPuts(); err != nil {
				return false, err
			}
		}
		out.Difference = p.Difference
		p.apply(e, b, to)
		out.Revision = e.spec.revision
		return needsSpace, nil
	})
	if err != nil {
		return nil, fmt.Errorf("reset datastore: %w", err)
	}
	out.Took = time.Since(begin)
	return out, nil
}

// Differs returns what a reset would change now.
func (e *Engine) Differs(to *Dump, opts ResetOptions) (*Difference, error) {
	var p *resetPlan
	err := e.ofNewest(func(s *snapshot) (err error) {
		p, err = e.planReset(&s.index, to, opts)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("compare datastore: %w", err)
	}
	return &p.Difference, nil
}

// resetPlan is what a reset changes.
type resetPlan struct {
	Difference
	deletes []*version
	puts    []*dumped
}

// planReset compares the keys of both sides in order, and changes nothing.
func (e *Engine) planReset(now *index, to *Dump, opts ResetOptions) (*resetPlan, error) {
	p := &resetPlan{}
	keep := func(key string, both bool) bool { return opts.Keep != nil && opts.Keep(key, both) }
	rest := to.keys
	missing := func(k *dumped) {
		if !keep(k.Key, false) {
			p.Missing = append(p.Missing, k.Key)
			p.puts = append(p.puts, k)
		}
	}
	var err error
	now.live.Scan(func(key string, v *version) bool {
		for len(rest) > 0 && rest[0].Key < key {
			missing(&rest[0])
			rest = rest[1:]
		}
		if len(rest) == 0 || rest[0].Key != key {
			if !keep(key, false) {
				p.Surplus = append(p.Surplus, key)
				p.deletes = append(p.deletes, v)
			}
			return true
		}
		k := &rest[0]
		rest = rest[1:]
		if to.engine == e && k.ID == v.ID || keep(key, true) {
			return true
		}
		var value []byte
		if value, err = e.value(v); err != nil {
			return false
		}
		if bytes.Equal(value, k.value) && (v.Lease == 0) == (k.Lease == 0) {
			return true
		}
		p.Changed = append(p.Changed, key)
		p.puts = append(p.puts, k)
		if opts.Another != nil && opts.Another(value, k.value) {
			p.deletes = append(p.deletes, v)
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	for i := range rest {
		missing(&rest[i])
	}
	slices.SortStableFunc(p.deletes, func(a, b *version) int { return cmp.Compare(a.Create, b.Create) })
	slices.SortStableFunc(p.puts, func(a, b *dumped) int {
		return cmp.Or(cmp.Compare(a.Create, b.Create), cmp.Compare(a.ID, b.ID))
	})
	return p, nil
}

// apply cannot fail. The caller holds e.mu.
func (p *resetPlan) apply(e *Engine, b *batch, to *Dump) {
	for _, v := range p.deletes {
		e.spec.revision++
		e.change(b, &version{Row: sqlitefile.Row{ID: sqlitefile.RowID(e.spec.revision, 0), Key: v.Key}}, nil)
	}
	for _, k := range p.puts {
		if k.Lease != 0 && e.leases.find(k.Lease) == nil {
			l := e.leases.grant(k.Lease, to.leases[k.Lease])
			b.leases = append(b.leases, leaseChange{id: l.id, ttl: l.ttl, lease: l})
		}
		e.spec.revision++
		v := &version{Row: sqlitefile.Row{ID: sqlitefile.RowID(e.spec.revision, 0), Key: k.Key, Create: e.spec.revision, Version: 1, Lease: k.Lease}}
		if current, ok := e.spec.live.Get(k.Key); ok {
			v.Create, v.Version = current.Create, current.Version+1
		}
		e.change(b, v, k.value)
	}
}
