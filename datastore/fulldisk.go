package datastore

import (
	"context"
	"time"

	"github.com/karve-k8s/karve/datastore/directory"
)

// NoSpace returns [ErrNoSpace] as a write would return it now.
func (e *Engine) NoSpace() error { return e.ballast.NoSpace() }

// Writable returns why puts are refused, or nil. On a full disk it does what a put would do to get space again.
func (e *Engine) Writable() error {
	if err := e.Err(); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.roomForPuts()
}

// roomForPuts returns [ErrNoSpace] while the disk is full. The caller holds e.mu.
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

// reclaimSometimes reclaims after a delete on a full disk: many deletes can use up the space of the ballast
// before they have freed any. The caller holds e.mu.
func (e *Engine) reclaimSometimes() {
	if e.ballast.Released() && time.Since(e.reclaimed) >= directory.RetryInterval {
		e.reclaim()
	}
}

// reclaim lets housekeeping continue and compacts to the newest revision, when there is a put or a delete on
// a full disk. What was deleted still takes space as history, and the API server compacts only every five
// minutes. Watches that are behind have to list again, which is better than a cluster that accepts no
// writes. The caller holds e.mu.
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
