package external

import (
	"context"
	"sync/atomic"

	"github.com/k3s-io/kine/pkg/server"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/kine/inprocess"
)

// errCutOff is the end of a watch that did not read, or that could not continue.
var errCutOff = status.Error(codes.Unavailable, "the datastore has ended the watch")

// cursor reads what a backend sends, as kine's bridge does (kine pkg/server/watch.go). A
// backend sends the events of all keys; the cursor filters them.
type cursor struct {
	backend  server.Backend
	ctx      context.Context
	cancel   context.CancelFunc
	result   server.WatchResult
	key, end string
	start    int64

	seen   int64         // every event up to it has come
	wanted atomic.Int64  // the revision for which progress was requested; 0: none
	poke   chan struct{} // wanted has changed
}

func openCursor(ctx context.Context, backend server.Backend, key, end string, revision int64) (inprocess.Cursor, error) {
	ctx, cancel := context.WithCancel(ctx)
	c := &cursor{
		backend: backend, ctx: ctx, cancel: cancel, key: key, end: end,
		start: revision, seen: revision - 1, poke: make(chan struct{}, 1),
	}
	c.result = backend.Watch(ctx, revision)
	if c.result.CompactRevision != 0 {
		cancel()
		return nil, inprocess.CompactedError{Current: c.result.CurrentRevision, Compacted: c.result.CompactRevision}
	}
	return c, nil
}

func (c *cursor) Next(ctx context.Context) (int64, []*clientv3.Event, error) {
	for {
		if wanted := c.wanted.Load(); wanted != 0 && c.seen >= wanted && c.wanted.CompareAndSwap(wanted, 0) {
			return c.seen, nil, nil
		}
		select {
		case batch, open := <-c.result.Eventc:
			if !open {
				return 0, nil, c.ended(ctx)
			}
			c.seen = max(c.seen, batch.CurrentRev)
			if events := c.sort(batch.Events); len(events) > 0 {
				return events[len(events)-1].Kv.ModRevision, events, nil
			}
		case <-c.poke:
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		}
	}
}

// sort returns the events of a batch that the client wants.
func (c *cursor) sort(batch []*server.Event) (events []*clientv3.Event) {
	for _, e := range batch {
		if e.KV.ModRevision >= c.start && c.inRange(e.KV.Key) {
			events = append(events, clientEvent(e))
		}
	}
	return events
}

// inRange follows etcd: without an end the range is one key, and an end of one zero byte means
// all keys from key on.
func (c *cursor) inRange(key string) bool {
	switch c.end {
	case "":
		return key == c.key
	case "\x00":
		return key >= c.key
	}
	return key >= c.key && key < c.end
}

func (c *cursor) ended(ctx context.Context) error {
	select {
	case err := <-c.result.Errorc:
		return err
	default:
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errCutOff
}

// RequestProgress is answered when every event up to the newest revision has come.
func (c *cursor) RequestProgress() {
	revision, err := c.backend.CurrentRevision(c.ctx) // from memory
	if err != nil {
		return
	}
	for old := c.wanted.Load(); old < revision && !c.wanted.CompareAndSwap(old, revision); old = c.wanted.Load() {
	}
	select {
	case c.poke <- struct{}{}:
	default:
	}
}

func (c *cursor) Close() { c.cancel() }
