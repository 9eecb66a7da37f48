package external

import (
	"context"

	"github.com/k3s-io/kine/pkg/server"
)

// Watch returns the events of all keys from revision on, which is not 0.
// Every batch has the revision up to which its events are complete, and no event comes twice.
func (b *Backend) Watch(ctx context.Context, revision int64) server.WatchResult {
	ctx, cancel := context.WithCancel(ctx)
	out, errc := make(chan server.EventBatch), make(chan error, 1)
	live := b.tail.watch(ctx) // first, so that no event is missed
	limited, end := b.limit(ctx)
	from, history, err := b.begin(limited, revision)
	err = guardError(limited, err)
	end()
	to := server.WatchResult{CurrentRevision: from.CurrentRevision, CompactRevision: from.CompactRevision, Eventc: out, Errorc: errc}
	if err != nil || from.CompactRevision != 0 {
		if err != nil {
			errc <- b.status(ctx, err)
		}
		cancel()
		close(out)
		return to
	}
	go func() {
		defer cancel()
		defer close(out)
		b.pass(ctx, live, history, out, revision)
	}()
	return to
}

// begin reads the history of a watch. It reads the events itself: kine leaves out the
// value before an event if that value is older than the compaction. etcd does not, as it reads the value as of the revision before the event,
// and a watch of the API server ends without it.
func (b *Backend) begin(ctx context.Context, revision int64) (to server.WatchResult, history server.EventBatch, err error) {
	after := max(revision-1, 1) // the first revision is kine's own
	rows, err := b.table.After(ctx, "", "", after, 0)
	if err != nil {
		return to, history, err
	}
	history, compacted, err := eventsOf(rows, after, true, true)
	if err == server.ErrCompacted {
		to.CompactRevision, err = compacted, nil
	}
	to.CurrentRevision = history.CurrentRev
	return to, history, err
}

// pass passes on the events of a watch, which begin with its history, until it ends.
func (b *Backend) pass(ctx context.Context, from <-chan server.EventBatch, batch server.EventBatch, to chan<- server.EventBatch, start int64) {
	o := order{seen: start - 1}
	for open := true; open; {
		select {
		case to <- o.next(batch):
		case <-ctx.Done():
			return
		}
		select {
		case batch, open = <-from:
		case <-ctx.Done():
			return
		}
	}
}

// order keeps the batches of a watch in order: the first live ones may have events of the history.
type order struct {
	seen int64 // every event up to it has been passed on
}

// next returns what is new in a batch.
func (o *order) next(batch server.EventBatch) server.EventBatch {
	batch = batch.After(o.seen)
	if n := len(batch.Events); n > 0 {
		o.seen = max(o.seen, batch.Events[n-1].KV.ModRevision)
	}
	o.seen = max(o.seen, batch.CurrentRev)
	batch.CurrentRev = o.seen
	return batch
}
