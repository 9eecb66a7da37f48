package datastore

import (
	"context"
	"time"

	"github.com/karve-k8s/karve/datastore/directory"
)

// NoSpace is the error of a write that the disk has no room for, as of now.
func (e *Engine) NoSpace() error { return e.ballast.NoSpace() }

// roomForPuts refuses what needs space while the disk is full. The caller holds e.mu.
func (e *Engine) roomForPuts() error {
	ok, tried := e.ballast.Regained()
	if ok {
		return nil
	}
	if tried {
		e.reclaim()
	}
	return e.ballast.NoSpace()
}

// reclaimSometimes reclaims while somebody deletes on a full disk: many deletes take what
// room there is before they have given any back. The caller holds e.mu.
func (e *Engine) reclaimSometimes() {
	if e.ballast.Released() && time.Since(e.reclaimed) >= directory.RetryInterval {
		e.reclaim()
	}
}

// reclaim lets housekeeping go on and compacts to the newest revision, while a disk is full
// and somebody wants to put or delete something: what was deleted still takes room as history, and the API server compacts
// that after five minutes only. Watches that are behind have to list again, which is
// better than a cluster that takes no write. The caller holds e.mu.
func (e *Engine) reclaim() {
	e.reclaimed = time.Now()
	e.retry.Store(true)
	e.wakeCommitter()
	revision := e.snap.Load().revision
	if revision <= e.compacted || e.backlog.Load() > 0 || e.closing {
		return
	}
	e.reclaiming.Go(func() { _ = e.Compact(context.Background(), revision, false) }) // the next put tries again
}
