package external

import (
	"context"

	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
	"github.com/k3s-io/kine/pkg/server"
)

// Watch returns the events of all keys from revision on, or from the next one if that is 0.
// Every batch has the revision up to which its events are complete, and no event comes twice.
func (b *Backend) Watch(ctx context.Context, revision int64) server.WatchResult {
	// kine's NATS driver tries a watch for ever after its deadline.
	ctx, cancel := withoutDeadline(ctx)
	out, errc := make(chan server.EventBatch), make(chan error, 1)
	if !b.external.kind.sql {
		go b.watchLater(ctx, cancel, revision, out, errc)
		return server.WatchResult{Eventc: out, Errorc: errc}
	}
	guarded, stop, _ := b.watchdog.guard(ctx) // it ends with ctx
	from, history, start, end, err := b.watch(guarded, revision)
	stop()
	if guarded.Err() != nil { // kine does not tell of an end in its history
		err = context.Cause(guarded)
	}
	to := server.WatchResult{CurrentRevision: from.CurrentRevision, CompactRevision: from.CompactRevision, Eventc: out, Errorc: errc}
	if err != nil || from.CompactRevision != 0 {
		if err != nil {
			errc <- b.status(ctx, err)
		}
		end()
		cancel()
		close(out)
		return to
	}
	go func() {
		defer cancel()
		defer end()
		defer close(out)
		if err := b.pass(ctx, from, &history, out, start); err != nil {
			errc <- b.status(ctx, err)
		}
	}()
	return to
}

// begin begins a watch, as kine's LogStructured does, and reads its history. It reads the events itself: kine leaves out the
// value before an event if that value is older than the compaction. etcd does not, as it reads the value as of the revision before the event,
// and a watch of the API server ends without it.
func (b *Backend) begin(ctx context.Context, revision int64) (to server.WatchResult, history server.EventBatch, err error) {
	err = contain(func() error { // first, so that no event is missed
		to.Eventc = b.table.Watch(ctx)
		return nil
	})
	if err != nil {
		return to, history, err
	}
	if revision == 0 {
		to.CurrentRevision, err = b.table.CurrentRevision(ctx)
		return to, server.EventBatch{CurrentRev: to.CurrentRevision}, err
	}
	after := max(revision-1, 1) // the first revision is kine's own
	rows, err := b.events.After(ctx, "", "", after, 0)
	if err != nil {
		return to, history, err
	}
	history, compacted, err := sqllog.RowsToEvents(rows, true, true)
	switch {
	case err != nil:
	case rows.Err() != nil:
		err = rows.Err()
	case history.CurrentRev == 0:
		err = server.ErrGRPCUnhealthy
	case after < compacted:
		to.CompactRevision = compacted
	case after > history.CurrentRev:
		err = server.ErrFutureRev
	}
	to.CurrentRevision = history.CurrentRev
	return to, history, err
}

// watchLater begins a watch without a caller that waits for it: kine's NATS driver waits for an
// event at the newest revision, and the mark of a delete is none. The next write of anybody ends
// that (kine pkg/drivers/nats/backend.go, after).
func (b *Backend) watchLater(ctx context.Context, cancel context.CancelFunc, revision int64, out chan<- server.EventBatch, errc chan<- error) {
	defer cancel()
	defer close(out)
	from := b.backend.Watch(ctx, revision)
	err := error(server.ErrCompacted)
	if from.CompactRevision == 0 {
		err = b.pass(ctx, from, nil, out, revision)
	}
	if err != nil {
		errc <- b.status(ctx, err)
	}
}

// pass passes on the events of a watch until it ends. first is a batch that was read before, or nil.
func (b *Backend) pass(ctx context.Context, from server.WatchResult, first *server.EventBatch, to chan<- server.EventBatch, start int64) error {
	o := order{seen: start - 1}
	for {
		var batch server.EventBatch
		var open bool
		if first != nil {
			batch, open, first = *first, true, nil
		} else {
			select {
			case batch, open = <-from.Eventc:
			case <-ctx.Done():
				return nil
			}
		}
		if !open { // kine may have a reason
			select {
			case err := <-from.Errorc:
				return err
			default:
				return nil
			}
		}
		batch = o.next(batch)
		select {
		case to <- batch:
		case <-ctx.Done():
			return nil
		}
	}
}

// order keeps the batches of a watch in order: the first live ones may have events of the history, and kine's NATS driver begins
// anew after a lost connection, and sends events that it has sent.
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

func withoutDeadline(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(context.WithoutCancel(parent))
	detach := context.AfterFunc(parent, stop)
	return ctx, func() { detach(); stop() }
}
