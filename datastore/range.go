package datastore

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Range reads keys in order, without a lock. It sees every write that was answered before the call.
//
// The error is [ErrCompacted] for a revision older than the compaction revision, and [ErrFutureRevision] for one
// that does not exist yet. The cost of a count does not depend on the number of keys, for the newest revision
// and for the revision of a list with more pages, as long as few other lists begin. For any other revision a
// count costs as much as a list of all keys; [RangeRequest].NoCount saves it.
func (e *Engine) Range(ctx context.Context, req RangeRequest) (*RangeResponse, error) {
	if req.Key == "" {
		return nil, ErrEmptyKey
	}
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		resp, err := e.rangeOnce(&req)
		if errors.Is(err, sqlitefile.ErrRowMissing) {
			// Compaction has deleted a row after it was found in the index. The newest state can
			// be read again; a past revision is compacted.
			switch {
			case req.Revision != 0 && req.Revision < e.CompactRevision():
				return nil, e.compactedError(req.Revision)
			case try < 1000:
				continue
			}
			return nil, fmt.Errorf("%w: %s: a row of the index is missing (restore a backup)", ErrCorrupt, e.path)
		}
		return resp, err
	}
}

func (e *Engine) rangeOnce(req *RangeRequest) (*RangeResponse, error) {
	snap := e.snap.Load()
	if req.Revision > snap.revision {
		return nil, fmt.Errorf("%w: %d, the newest is %d", ErrFutureRevision, req.Revision, snap.revision)
	}
	if req.Revision != 0 && req.Revision < snap.compacted {
		return nil, e.compactedError(req.Revision)
	}
	source := &snap.index
	if req.Revision != 0 && req.Revision != snap.revision {
		if page := e.pages.get(req.Revision); page != nil {
			source = page
		}
	}
	hits, count := source.find(*req)
	resp := &RangeResponse{Revision: snap.revision, Count: count}
	resp.More = !req.CountOnly && count > int64(len(hits))
	if len(hits) > 0 {
		resp.KVs = make([]KeyValue, len(hits))
	}
	for i, v := range hits {
		resp.KVs[i] = v.header()
	}
	if !req.KeysOnly {
		if err := e.values(hits, func(i int, value []byte) { resp.KVs[i].Value = value }); err != nil {
			return nil, err
		}
	}
	// Compaction may have removed some of the history meanwhile.
	if req.Revision != 0 && req.Revision < e.CompactRevision() {
		return nil, e.compactedError(req.Revision)
	}
	if resp.More && source == &snap.index && (req.Revision == 0 || req.Revision == snap.revision) {
		e.pages.keep(&snap.index)
	}
	return resp, nil
}

func (e *Engine) compactedError(revision int64) error {
	return fmt.Errorf("%w: %d, compacted to %d", ErrCompacted, revision, e.CompactRevision())
}

// pageCache keeps the last few states that a page of a list was read from, so that the next page uses the index
// of that state. A kept state costs the nodes of the index that have changed since.
type pageCache struct {
	mu      sync.Mutex
	indexes [8]*index
	next    int
}

func (p *pageCache) keep(v *index) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, have := range p.indexes {
		if have != nil && have.revision == v.revision {
			return
		}
	}
	p.indexes[p.next] = v
	p.next = (p.next + 1) % len(p.indexes)
}

func (p *pageCache) get(revision int64) *index {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, v := range p.indexes {
		if v != nil && v.revision == revision {
			return v
		}
	}
	return nil
}

// forget removes the states older than a compaction.
func (p *pageCache) forget(revision int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, v := range p.indexes {
		if v != nil && v.revision < revision {
			p.indexes[i] = nil
		}
	}
}
