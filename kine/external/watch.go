package external

import (
	"context"

	"github.com/k3s-io/kine/pkg/server"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
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

// errHistory is the end of a watch whose history kine has read only in part. kine does not ask
// sql.Rows for its error (kine pkg/logstructured/sqllog, RowsToEvents).
var errHistory = status.Error(codes.Unavailable, "the datastore has lost a connection in the middle of a watch's history")

// pass passes on the events of a watch until it ends. first is a batch that was read before, or nil.
func (b *Backend) pass(ctx context.Context, from server.WatchResult, first *server.EventBatch, to chan<- server.EventBatch, start int64) error {
	o := order{seen: start - 1, history: start > 0}
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
		ok := open
		if open {
			batch, ok = o.next(batch)
		}
		if !ok { // kine may have a better reason
			select {
			case err := <-from.Errorc:
				return err
			default:
			}
			if open {
				return errHistory
			}
			return nil
		}
		select {
		case to <- batch:
		case <-ctx.Done():
			return nil
		}
	}
}

// order keeps the batches of a watch in order: kine's NATS driver begins anew after a lost
// connection, and sends events that it has sent.
type order struct {
	seen    int64 // every event up to it has been passed on
	history bool  // the next batch is the history
}

// next returns what is new in a batch. It returns false for a history that is not complete: the
// last event of one is at the revision of the batch.
func (o *order) next(batch server.EventBatch) (server.EventBatch, bool) {
	batch = batch.After(o.seen)
	n := len(batch.Events)
	if o.history && batch.CurrentRev > max(o.seen, 1) && (n == 0 || batch.Events[n-1].KV.ModRevision < batch.CurrentRev) {
		return batch, false
	}
	o.history = false
	if n > 0 {
		o.seen = max(o.seen, batch.Events[n-1].KV.ModRevision)
	}
	o.seen = max(o.seen, batch.CurrentRev)
	batch.CurrentRev = o.seen
	return batch, true
}

func withoutDeadline(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, stop := context.WithCancel(context.WithoutCancel(parent))
	detach := context.AfterFunc(parent, stop)
	return ctx, func() { detach(); stop() }
}
