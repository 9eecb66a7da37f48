package datastore

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/fence"
)

// batch gathers transactions until the committer takes it. Until then Engine.mu guards it; afterwards only
// the committer uses it. err is set before done is closed.
type batch struct {
	rows     []*version
	leases   []leaseChange
	compact  int64 // the new compaction revision, or 0
	bytes    int
	puts     bool // one of its transactions needs space
	deferred bool // its rows are not on the disk yet; see deferred.go

	state index // after the batch; set when the committer takes it
	done  chan struct{}
	err   error
}

// A batch is full at either bound. Then writers wait for the next one.
const (
	batchRows  = 4096
	batchBytes = 4 << 20
)

func newBatch() *batch { return &batch{done: make(chan struct{})} }

func (b *batch) full() bool { return len(b.rows) >= batchRows || b.bytes >= batchBytes }

// value returns the value of a row of the batch, which stays in memory until it is published.
func (b *batch) value(v *version) []byte {
	if p := v.value.Load(); p != nil {
		return *p
	}
	return nil
}

// Len and At make a batch the rows that the file writes.
func (b *batch) Len() int { return len(b.rows) }

// At returns a row of the batch and its value.
func (b *batch) At(i int) (*sqlitefile.Row, []byte) { return &b.rows[i].Row, b.value(b.rows[i]) }

// forDisk returns what the file writes of the batch.
func (b *batch) forDisk() sqlitefile.Batch {
	out := sqlitefile.Batch{Rows: b}
	if b.compact > 0 {
		out.Metas = sqlitefile.Metas{"compact_revision": b.compact}
	}
	for _, l := range b.leases {
		out.Leases = append(out.Leases, sqlitefile.LeaseChange{ID: l.id, TTL: l.ttl, Revoked: l.revoked})
	}
	return out
}

// Txn evaluates a transaction. It waits until the outcome is durable, and everything that the response
// reveals. If ctx ends first, the error is ctx's and the transaction may still happen.
func (e *Engine) Txn(ctx context.Context, req TxnRequest) (*TxnResponse, error) {
	if err := checkTxn(&req); err != nil {
		return nil, err
	}
	var resp *TxnResponse
	err := e.submit(ctx, func(b *batch) (needsSpace bool, err error) {
		t := &txn{e: e, b: b, revision: e.spec.revision}
		if err := t.prepare(&req); err != nil {
			return false, err
		}
		if t.needsSpace {
			if err := e.roomForPuts(); err != nil {
				return false, err
			}
		}
		resp = t.apply(&req)
		if t.revision > e.spec.revision {
			e.reclaimSometimes()
		}
		e.spec.revision = t.revision
		return t.needsSpace, nil
	})
	if err != nil {
		return nil, err
	}
	return resp, nil
}

// Barrier returns when every change that was ordered before the call is durable and can be read, or has
// failed. This includes changes whose callers no longer wait.
func (e *Engine) Barrier(ctx context.Context) error {
	return e.submit(ctx, func(*batch) (bool, error) { return false, nil })
}

// submit calls change with the pending batch to add to, and waits until the batch is durable. It does not
// call change if its sender has taken it back (package fence). change reads
// and changes the speculative state. If an earlier batch fails, change runs again from the durable state. If
// change returns an error, it must not have changed anything.
//
// An error of change waits too: "lease not found" reveals a revocation that may still be on its way to the
// disk. If that batch fails, the revocation has not happened, and change runs again. Only [ErrNoSpace] is
// returned immediately, because it is about the disk and not about the state.
//
// The lock is the sequencer: the caller's own goroutine orders its change, so a write costs two goroutine
// switches and not four.
func (e *Engine) submit(ctx context.Context, change func(*batch) (needsSpace bool, err error)) error {
	for refused := 0; ; {
		if err := ctx.Err(); err != nil {
			return err
		}
		e.mu.Lock()
		err := e.refusal()
		if err == nil {
			err = takenBack(ctx)
		}
		if err != nil {
			e.mu.Unlock()
			return err
		}
		if b := e.pending; b != nil && b.full() {
			room := e.taken
			e.mu.Unlock()
			select {
			case <-room:
				continue
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		b := e.pending
		if b == nil {
			b = newBatch()
		}
		before := b.weight()
		needsSpace, answer := e.evaluate(change, b)
		if errors.Is(answer, ErrNoSpace) || e.fatal != nil {
			e.mu.Unlock()
			return answer
		}
		wait, changed := e.pending, b.weight() != before
		if changed {
			e.pending, wait = b, b
			b.puts = b.puts || needsSpace
		}
		if wait == nil {
			wait = e.inflight // what was read may be on its way to the disk
		}
		e.mu.Unlock()
		if wait == nil {
			return answer
		}
		if wait == b {
			e.wakeCommitter()
		}
		select {
		case <-wait.done:
		case <-ctx.Done():
			return ctx.Err()
		}
		switch {
		case wait.err == nil:
			return answer
		case wait.err == errRetry:
		case wait.err == ErrNoSpace && !changed: // another caller's batch: what change has read did not happen
		case wait.err == ErrNoSpace && !needsSpace && refused < 3:
			refused++ // by a put in the same batch, or there was still ballast to give
		case wait.err == ErrNoSpace:
			return e.ballast.NoSpace()
		default:
			return wait.err
		}
	}
}

// takenBack returns [ErrTakenBack] if the sender of a change has taken it back. It is asked under the lock, in
// the moment in which the change would be ordered: whatever ends the sender's right, such as another server's
// write of a lease, is ordered by the same lock.
func takenBack(ctx context.Context) error {
	if err := fence.Check(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrTakenBack, err)
	}
	return nil
}

// PanicError is a panic while a transaction was evaluated. The speculative state may be half changed, so the
// engine refuses all further writes.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v", e.Value) }

// evaluate calls change with e.mu held, and returns with e.mu held even after a panic. Otherwise a caller that
// recovers, as an HTTP server does, would leave e.mu locked for ever.
func (e *Engine) evaluate(change func(*batch) (bool, error), b *batch) (needsSpace bool, err error) {
	defer func() {
		if value := recover(); value != nil {
			needsSpace, err = false, e.poison(&PanicError{value, debug.Stack()})
			e.wakeCommitter()
		}
	}()
	return change(b)
}

func (b *batch) weight() int64 {
	return int64(len(b.rows)+len(b.leases)) + b.compact
}

// refusal returns the reason why the engine refuses work, or nil. The caller holds e.mu.
func (e *Engine) refusal() error {
	if e.fatal != nil {
		return e.fatal
	}
	if e.closing {
		return ErrClosed
	}
	return nil
}

// change adds a version to the speculative state and to the batch.
func (e *Engine) change(b *batch, v *version, value []byte) {
	head := e.spec.head(v.Key)
	if head != nil {
		v.Key = head.Key // one string per key
		v.prev.Store(head)
	}
	if v.Tombstone() {
		e.detach(head)
	} else {
		v.size = int32(len(value))
		v.value.Store(&value)
		if head != nil && !head.Tombstone() && head.Lease != v.Lease {
			e.detach(head)
		}
		e.attach(v)
	}
	e.spec.set(v)
	b.rows = append(b.rows, v)
	b.bytes += len(v.Key) + len(value) + 64
}
