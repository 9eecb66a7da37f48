package external

import (
	"context"
	"database/sql"
	"time"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/metrics"
	"github.com/k3s-io/kine/pkg/server"
)

// Compactions are those of kine (kine pkg/logstructured/sqllog, compact), whose code ends the process when a commit or a rollback fails.
const (
	compactBatch  = 1000 // revisions in a transaction
	compactRetain = 1000 // newest revisions that stay
	compactLimit  = 30 * time.Second
	compactTries  = 20
	compactPause  = 100 * time.Millisecond
)

// Compact removes history up to revision, except for the newest compactRetain revisions, and for what the watches
// do not have yet.
func (b *Backend) Compact(ctx context.Context, revision int64) (int64, error) {
	now, _ := b.CurrentRevision(ctx)
	return now, b.status(ctx, b.compact(ctx, revision, now))
}

func (b *Backend) compact(ctx context.Context, revision, now int64) (err error) {
	if revision > now {
		return server.ErrFutureRev
	}
	revision = min(revision, b.tail.at.Load())
	compacted, err := b.revision(ctx, generic.CompactRevSQL)
	if err != nil {
		return err
	}
	if revision <= compacted {
		return server.ErrCompacted
	}
	defer func() {
		result := metrics.ResultSuccess
		if err != nil {
			result = metrics.ResultError
		}
		metrics.CompactTotal.WithLabelValues(result).Inc()
	}()
	for compacted < revision {
		next := min(compacted+compactBatch, revision)
		done, err := b.compactBatch(ctx, compacted, next)
		for tries := 1; err != nil && tries < compactTries && conflicts(err); tries++ {
			select {
			case <-time.After(compactPause):
			case <-ctx.Done():
			}
			done, err = b.compactBatch(ctx, compacted, next)
		}
		if err != nil || !done {
			return err
		}
		compacted = next
	}
	return nil
}

// compactBatch removes history between two revisions, in one transaction. It returns false if nothing is left to do: another server
// has done it, or what is left are the newest revisions.
func (b *Backend) compactBatch(ctx context.Context, from, to int64) (done bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, compactLimit)
	defer cancel()
	tx, err := b.table.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable})
	if err != nil {
		return false, err
	}
	defer tx.Rollback() // fails after a commit
	newest, err := tx.CurrentRevision(ctx)
	if err != nil {
		return false, err
	}
	compacted, err := tx.GetCompactRevision(ctx)
	if err != nil {
		return false, err
	}
	retained := newest - compactRetain
	if compacted != from || retained <= from {
		return false, nil
	}
	to = min(to, retained)
	if err := tx.SetCompactRevision(ctx, to); err != nil { // first, so that a limit of time does not waste the rest
		return false, err
	}
	if _, err := tx.Compact(ctx, from, to); err != nil {
		return false, err
	}
	return to < retained, tx.Commit()
}
