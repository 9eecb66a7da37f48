package external

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/kine/inprocess"
)

// errCutOff is the end of a watch that kine has ended because it did not read (kine
// pkg/broadcaster).
var errCutOff = status.Error(codes.Unavailable, "the datastore has ended the watch")

// cursor reads what a backend sends, as kine's bridge does (kine pkg/server/watch.go).
//
// Only the events themselves tell how far a watch is. WaitForSyncTo waits until kine has read
// the log; between that and the end of the channel are three goroutines with buffers of their
// own. A watch of an SQL database therefore reads all keys and filters them here, which costs
// no more than filtering them there.
type cursor struct {
	backend  server.Backend
	ctx      context.Context
	cancel   context.CancelFunc
	result   server.WatchResult
	key, end string
	all      bool          // the backend sends every key
	slack    time.Duration // between WaitForSyncTo and the end of the channel
	start    int64

	seen     atomic.Int64  // all: every event up to it has come; otherwise the newest that has
	wanted   atomic.Int64  // the revision for which progress was requested; 0: none
	poke     chan struct{} // wanted has changed
	progress chan int64    // a revision for a reader that has nothing to read
	waiting  atomic.Bool
}

// watchesAll is a backend that sends all keys as cheaply as some.
type watchesAll interface{ watchesAll() bool }

func openCursor(ctx context.Context, backend server.Backend, key, end string, revision int64) (inprocess.Cursor, error) {
	// The context has no deadline, because kine's NATS driver would try for ever after it.
	parent := ctx
	ctx, stop := context.WithCancel(context.WithoutCancel(parent))
	detach := context.AfterFunc(parent, stop)
	cancel := func() { detach(); stop() }
	c := &cursor{
		backend: backend, ctx: ctx, cancel: cancel, key: key, end: end, start: revision,
		poke: make(chan struct{}, 1), progress: make(chan int64),
	}
	if w, ok := backend.(watchesAll); ok {
		c.all, c.slack = w.watchesAll(), progressSlack
	}
	if c.all {
		key, end = "", ""
	}
	c.seen.Store(revision - 1)
	c.result = backend.Watch(ctx, key, end, revision)
	if c.result.CompactRevision != 0 {
		cancel()
		return nil, inprocess.CompactedError{Current: c.result.CurrentRevision, Compacted: c.result.CompactRevision}
	}
	return c, nil
}

func (c *cursor) Next(ctx context.Context) (int64, []*clientv3.Event, error) {
	for {
		if wanted, seen := c.wanted.Load(), c.seen.Load(); wanted != 0 && seen >= wanted && c.wanted.CompareAndSwap(wanted, 0) {
			return seen, nil, nil
		}
		select {
		case batch, open := <-c.result.Events:
			if !open {
				return 0, nil, c.ended(ctx)
			}
			if events := c.sort(batch); len(events) > 0 {
				return events[len(events)-1].Kv.ModRevision, events, nil
			}
		case err := <-c.result.Errorc:
			return 0, nil, err
		case <-c.poke:
		case revision := <-c.progress:
			if revision >= c.seen.Load() {
				c.seen.Store(revision)
				return revision, nil, nil
			}
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		}
	}
}

// sort returns the events of a batch that the client wants.
func (c *cursor) sort(batch []*server.Event) (events []*clientv3.Event) {
	for _, e := range batch {
		if e.KV.ModRevision < c.start {
			continue
		}
		c.seen.Store(e.KV.ModRevision)
		if !c.all || c.inRange(e.KV.Key) {
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

// RequestProgress is answered when the events that have come reach the revision. If there is
// no event at that revision, because kine filled a gap, it is answered some time after the
// backend has caught up, if Next is idle then.
func (c *cursor) RequestProgress() {
	go func() {
		revision, err := c.backend.CurrentRevision(c.ctx)
		if err != nil {
			return
		}
		if c.all {
			for old := c.wanted.Load(); old < revision && !c.wanted.CompareAndSwap(old, revision); old = c.wanted.Load() {
			}
			select {
			case c.poke <- struct{}{}:
			default:
			}
			if c.pause(); c.seen.Load() >= revision {
				return
			}
		}
		if !c.waiting.CompareAndSwap(false, true) { // only one goroutine waits for a backend that is away
			return
		}
		defer c.waiting.Store(false)
		c.backend.WaitForSyncTo(revision)
		c.pause()
		select {
		case c.progress <- revision: // only a waiting reader receives it
		default:
		}
	}()
}

func (c *cursor) pause() {
	select {
	case <-time.After(c.slack):
	case <-c.ctx.Done():
	}
}

func (c *cursor) Close() {
	c.cancel()
	go drain(c.result.Events)
}

// drain reads the rest of a watch that has ended, because kine's backends send without looking
// at the context. The channel of a watch that could not follow the log is never closed (kine
// pkg/logstructured, Watch).
func drain(events <-chan []*server.Event) {
	for {
		select {
		case _, open := <-events:
			if !open {
				return
			}
		case <-time.After(time.Second):
			return
		}
	}
}
