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

// errCutOff is the end of a watch that nobody ended: kine lets go of one that does
// not read (kine pkg/broadcaster).
var errCutOff = status.Error(codes.Unavailable, "the datastore has ended the watch")

// cursor reads what a backend of kine's hands over, as kine's bridge does
// (kine pkg/server/watch.go).
//
// How far a watch is, only what comes out of it tells: between kine's reading of
// the log, which is what WaitForSyncTo waits for, and the end of the channel there
// are three goroutines with buffers of their own. So of an SQL store every watch
// reads all keys, which costs no more: they are sorted out here instead of there.
type cursor struct {
	backend  server.Backend
	ctx      context.Context
	cancel   context.CancelFunc
	result   server.WatchResult
	key, end string
	all      bool          // the backend hands over every key
	slack    time.Duration // between WaitForSyncTo and the end of the channel
	start    int64

	seen     atomic.Int64  // everything up to it has come; if not all, something
	wanted   atomic.Int64  // a revision that somebody wants to know of; 0: nobody
	poke     chan struct{} // wanted has changed
	progress chan int64    // a revision for a reader that has nothing to read
	waiting  atomic.Bool
}

// watchesAll is a backend that hands over every key as cheaply as some.
type watchesAll interface{ watchesAll() bool }

func openCursor(ctx context.Context, backend server.Backend, key, end string, revision int64) (inprocess.Cursor, error) {
	// Without its deadline: kine's NATS driver tries for ever after one.
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

// sort keeps the events of a batch that were asked for.
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

// inRange is etcd's: no end is one key, and a zero byte all from key on.
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

// RequestProgress is answered when what has come says so. Where that says nothing,
// and for a revision without an event, which kine fills gaps with, it is answered
// if Next has nothing to do some time after the backend has caught up.
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
		if !c.waiting.CompareAndSwap(false, true) { // a backend that is away is waited for once
			return
		}
		defer c.waiting.Store(false)
		c.backend.WaitForSyncTo(revision)
		c.pause()
		select {
		case c.progress <- revision: // only a reader that waits receives it
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

// drain reads what is left of a watch that has been told to end: kine's own backends
// do not look at the context while they send. Where one could not follow the log at
// all, the channel is never closed (kine pkg/logstructured, Watch).
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
