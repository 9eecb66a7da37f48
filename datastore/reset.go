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

// ResetOptions say what a reset leaves alone. The zero value leaves nothing.
type ResetOptions struct {
	// Keep tells that a key stays as it is now, there or not. both is true for a key
	// that is there now and in the contents.
	Keep func(key string, both bool) bool

	// Another tells of two values of a key that they are not two states of one
	// object: the old one is then deleted and the new one made, and watchers see
	// both. Without it every change is an update.
	Another func(now, then []byte) bool
}

// Difference is what keeps a datastore from having certain contents: keys, in order.
type Difference struct {
	Missing []string // to be made
	Changed []string // to be put as they were
	Surplus []string // to be deleted
}

// Len is how many keys differ.
func (d *Difference) Len() int { return len(d.Missing) + len(d.Changed) + len(d.Surplus) }

// ResetResult tells what a reset did.
type ResetResult struct {
	Difference
	Revision int64 // of the store, after it
	Took     time.Duration
}

// Reset makes the datastore have the contents again, forwards: what differs is put
// and deleted as anybody could, each key in a revision of its own, so that revisions
// only rise, watchers see every change and no resourceVersion stands for two states.
// (Keys that share a revision would be lost to a client whose watch breaks between
// them.) Everything is one batch: it is on the disk as a whole or not at all, and
// readers see it at once; nobody else's write is between the difference and its end.
//
// Keys go in the order in which they were made, oldest first, and come back in that
// order, so that owners are deleted before what they own would be made anew.
// A key that was attached to a lease is attached to that again, or, if it has run
// out, to one of the same id and with the whole TTL.
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

// Differs tells what a reset would do now.
func (e *Engine) Differs(to *Dump, opts ResetOptions) (*Difference, error) {
	p, err := e.planReset(&e.snap.Load().index, to, opts)
	if err != nil {
		return nil, fmt.Errorf("compare datastore: %w", err)
	}
	return &p.Difference, nil
}

// resetPlan is what has to be done to a view.
type resetPlan struct {
	Difference
	deletes []*version
	puts    []*dumped
}

// planReset walks through both sides, which are in order, and changes nothing.
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
