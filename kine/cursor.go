package kine

import (
	"context"
	"errors"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/datastore"
)

// cursor is a watch in the form a client of this process reads it.
type cursor interface {
	// Next waits for events. Without any it answers only to RequestProgress,
	// with a revision up to which there are none left to read.
	Next(ctx context.Context) (int64, []*clientv3.Event, error)
	// RequestProgress may be called at any time. It may come to nothing where
	// events are on their way.
	RequestProgress()
	Close()
}

// compactedError is a watch whose history is gone.
type compactedError struct{ current, compacted int64 }

func (compactedError) Error() string { return server.ErrCompacted.Error() }

// opener is a backend with cursors of its own.
type opener interface {
	open(ctx context.Context, key, end string, revision int64, prev bool) (cursor, error)
}

// open begins a watch at revision, or at the next one if that is 0.
func (l *local) open(ctx context.Context, key, end string, revision int64, prev bool) (cursor, error) {
	if o, ok := l.backend.(opener); ok {
		return o.open(ctx, key, end, revision, prev)
	}
	if revision == 0 { // for kine's own backends that is all of history
		current, err := l.backend.CurrentRevision(ctx)
		if err != nil {
			return nil, err
		}
		revision = current + 1
	}
	ctx, cancel := context.WithCancel(ctx)
	result := l.backend.Watch(ctx, key, end, revision)
	if result.CompactRevision != 0 {
		cancel()
		return nil, compactedError{result.CurrentRevision, result.CompactRevision}
	}
	return &bridgeCursor{backend: l.backend, ctx: ctx, cancel: cancel, result: result, progress: make(chan int64), start: revision}, nil
}

// engineCursor is the engine's own cursor.
type engineCursor struct {
	backend *Backend
	watcher *datastore.Watcher
}

func (b *Backend) open(_ context.Context, key, end string, revision int64, prev bool) (cursor, error) {
	watcher, err := b.engine.Watch(datastore.WatchRequest{Key: key, End: end, StartRevision: revision, PrevKV: prev})
	if err != nil {
		return nil, b.watchError(err)
	}
	return engineCursor{b, watcher}, nil
}

func (c engineCursor) Next(ctx context.Context) (int64, []*clientv3.Event, error) {
	resp, err := c.watcher.Next(ctx)
	if err != nil {
		return 0, nil, c.backend.watchError(err)
	}
	if len(resp.Events) == 0 {
		return resp.Revision, nil, nil
	}
	events := make([]*clientv3.Event, len(resp.Events))
	for i := range resp.Events {
		e := &resp.Events[i]
		kv := keyValue(&e.KV)
		out := &clientv3.Event{Kv: clientKV(&kv)}
		if e.Type == datastore.EventDelete {
			out.Type = mvccpb.DELETE
		}
		if e.Prev != nil {
			prev := keyValue(e.Prev)
			out.PrevKv = clientKV(&prev)
		}
		events[i] = out
	}
	return resp.Revision, events, nil
}

func (c engineCursor) RequestProgress() { c.watcher.RequestProgress() }
func (c engineCursor) Close()           { c.watcher.Close() }

func (b *Backend) watchError(err error) error {
	if errors.Is(err, datastore.ErrCompacted) {
		return compactedError{b.engine.Revision(), b.engine.CompactRevision()}
	}
	return toStatus(err)
}

// bridgeCursor reads what any other backend hands over, in the way kine's bridge
// does it (kine pkg/server/watch.go).
type bridgeCursor struct {
	backend  server.Backend
	ctx      context.Context
	cancel   context.CancelFunc
	result   server.WatchResult
	progress chan int64
	start    int64
	last     int64
}

func (c *bridgeCursor) Next(ctx context.Context) (int64, []*clientv3.Event, error) {
	for {
		select {
		case batch, open := <-c.result.Events:
			if !open {
				select {
				case err := <-c.result.Errorc:
					return 0, nil, err
				default:
					return 0, nil, context.Canceled
				}
			}
			var events []*clientv3.Event
			for _, e := range batch {
				if e.KV.ModRevision >= c.start {
					events = append(events, clientEvent(e))
				}
			}
			if len(events) > 0 {
				c.last = events[len(events)-1].Kv.ModRevision
				return c.last, events, nil
			}
		case revision := <-c.progress:
			if revision >= c.last {
				return revision, nil, nil
			}
		case <-ctx.Done():
			return 0, nil, ctx.Err()
		}
	}
}

// RequestProgress is answered if Next has nothing else to do by the time the
// backend has caught up.
func (c *bridgeCursor) RequestProgress() {
	go func() {
		revision, err := c.backend.CurrentRevision(c.ctx)
		if err != nil {
			return
		}
		c.backend.WaitForSyncTo(revision)
		select {
		case c.progress <- revision:
		default:
		}
	}()
}

func (c *bridgeCursor) Close() {
	c.cancel()
	go func() { // kine's own backends do not look at the context while they send
		for range c.result.Events {
		}
	}()
}

func clientEvent(e *server.Event) *clientv3.Event {
	out := &clientv3.Event{Kv: clientKV(e.KV)}
	if e.Delete {
		out.Type = mvccpb.DELETE
	}
	if !e.Create && e.PrevKV != nil {
		out.PrevKv = clientKV(e.PrevKV)
	}
	return out
}

// The key of the API server's compactor, and what kine's bridge makes of it
// (kine pkg/server/compact.go).
const (
	compactKey       = "compact_rev_key"
	compactKeyOfKine = "compact_rev_key_apiserver"
)

func clientKV(kv *server.KeyValue) *mvccpb.KeyValue {
	out := &mvccpb.KeyValue{
		Key: []byte(kv.Key), Value: kv.Value, Version: kv.Version, Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
	}
	if kv.Key == compactKeyOfKine {
		out.Key = []byte(compactKey)
		out.Version, out.Value = server.DecodeVersion(kv.Value)
	}
	return out
}
