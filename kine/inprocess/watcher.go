package inprocess

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// watcher is the watches of one client.
type watcher struct {
	endpoint *Endpoint

	mu      sync.Mutex
	watches map[*clientWatch]bool // nil when closed
}

// clientWatch is one of them.
type clientWatch struct {
	stream string // those with the same answer a request for progress together
	cursor Cursor
	least  int64        // the first revision that a progress may have: etcd tells none before the start
	told   atomic.Int64 // the newest revision that its reader knows of
	cancel context.CancelFunc
	out    chan clientv3.WatchResponse
	op     watchOptions
	wakes  atomic.Int64 // since a goroutine began to read, if one does
	done   func()       // when the watch has ended
}

// watchOptions are the options of a watch that an Op has and does not show.
type watchOptions struct {
	createdNotify, progressNotify, prevKV, filterPut, filterDelete bool
}

func newWatcher(e *Endpoint) *watcher {
	return &watcher{endpoint: e, watches: map[*clientWatch]bool{}}
}

// Watch begins a watch as an etcd client does it; what differs: a response is
// never split (WithFragment), and a slow reader is cut off when what it has not
// read is compacted, instead of filling the memory.
func (w *watcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(w.endpoint.ctx, cancel)
	one := &clientWatch{
		stream: stream(ctx),
		cancel: func() { stop(); cancel() },
		out:    make(chan clientv3.WatchResponse, 1),
		op: watchOptions{
			createdNotify: flag(op, "createdNotify"), progressNotify: flag(op, "progressNotify"), prevKV: flag(op, "prevKV"),
			filterPut: flag(op, "filterPut"), filterDelete: flag(op, "filterDelete"),
		},
	}
	var err error
	var opened int64
	if one.cursor, opened, err = w.endpoint.store.Watch(ctx, string(op.KeyBytes()), string(op.RangeBytes()), op.Rev(), one.op.prevKV, func() { one.wake(ctx) }); err != nil {
		one.end(ctx, err)
		return one.out
	}
	if one.least = op.Rev(); one.least > 0 {
		one.told.Store(one.least - 1)
	} else {
		one.least = opened
	}
	if !w.add(one) {
		one.cursor.Close()
		one.cancel()
		close(one.out)
		return one.out
	}
	if one.op.createdNotify {
		one.out <- clientv3.WatchResponse{Header: pb.ResponseHeader{Revision: opened}, Created: true}
	}
	one.done = func() {
		one.cursor.Close()
		w.remove(one)
	}
	if _, ok := one.cursor.(Poller); ok {
		context.AfterFunc(ctx, one.cursor.Close) // which wakes it
		one.wake(ctx)
	} else {
		go one.run(ctx)
	}
	return one.out
}

// run passes on what the cursor reads until the watch ends.
func (c *clientWatch) run(ctx context.Context) {
	for {
		revision, events, err := c.cursor.Next(ctx)
		if err == nil {
			err = c.pass(ctx, revision, events)
		}
		if err != nil {
			c.end(ctx, err)
			return
		}
	}
}

// wake makes a goroutine read the poller until there is no more. One at a time: the
// next wake may come while what was read last is passed on.
func (c *clientWatch) wake(ctx context.Context) {
	if c.wakes.Add(1) == 1 {
		go c.read(ctx)
	}
}

func (c *clientWatch) read(ctx context.Context) {
	for {
		wakes := c.wakes.Load()
		for more := true; more; {
			revision, events, some, left, err := c.cursor.(Poller).Poll()
			if err == nil && some {
				err = c.pass(ctx, revision, events)
			}
			if err != nil {
				c.end(ctx, err)
				return // and no wake begins another
			}
			more = left
		}
		if c.wakes.CompareAndSwap(wakes, 0) {
			return
		}
	}
}

// pass passes on a response; the error is ctx's.
func (c *clientWatch) pass(ctx context.Context, revision int64, events []*clientv3.Event) error {
	if len(events) > 0 {
		if events = c.op.filter(events); len(events) == 0 {
			return nil
		}
	}
	known := revision
	if n := len(events); n > 0 {
		known = events[n-1].Kv.ModRevision // the API server looks at no header beside events
	} else if revision < c.least {
		return nil
	}
	c.told.Store(known) // it is on its way, which is as good
	select {
	case c.out <- clientv3.WatchResponse{Header: pb.ResponseHeader{Revision: revision}, Events: events}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end tells why the watch ends, unless it was told to, and closes it.
func (c *clientWatch) end(ctx context.Context, err error) {
	if c.done != nil {
		defer c.done()
	}
	defer close(c.out)
	defer c.cancel()
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return
	}
	resp := clientv3.WatchResponse{Canceled: true}
	if gone := (CompactedError{}); errors.As(err, &gone) {
		resp.Header.Revision, resp.CompactRevision = gone.Current, gone.Compacted
	} else {
		setField(&resp, "cancelReason", status.Convert(err).Message())
		if err == rpctypes.ErrGRPCCompacted {
			resp.CompactRevision = 1
		}
	}
	select {
	case c.out <- resp:
	case <-ctx.Done():
	}
}

func (o watchOptions) filter(events []*clientv3.Event) []*clientv3.Event {
	if !o.filterPut && !o.filterDelete {
		return events
	}
	var kept []*clientv3.Event
	for _, e := range events {
		if isDelete := e.Type == clientv3.EventTypeDelete; isDelete && !o.filterDelete || !isDelete && !o.filterPut {
			kept = append(kept, e)
		}
	}
	return kept
}

// RequestProgress makes every watch with the metadata of ctx answer its revision
// as soon as it has passed on all events up to it.
func (w *watcher) RequestProgress(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	stream := stream(ctx)
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.watches {
		if one.stream == stream {
			one.cursor.RequestProgress()
		}
	}
	return nil
}

// tell makes the watches that want to know it answer a revision that their reader
// is about to wait for.
func (w *watcher) tell(revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.watches {
		if one.op.progressNotify && one.told.Load() < revision {
			one.cursor.RequestProgress()
		}
	}
}

// stream tells watches apart as etcd's client does, which has a stream for each
// metadata (client/v3/watch.go, streamKeyFromCtx): the API server keeps its cache's
// watch from those of clients in that way.
func stream(ctx context.Context) string {
	if md, ok := metadata.FromOutgoingContext(ctx); ok {
		return fmt.Sprint(map[string][]string(md))
	}
	return ""
}

// Close ends the client's watches.
func (w *watcher) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.watches {
		one.cancel()
	}
	w.watches = nil
	return nil
}

func (w *watcher) add(one *clientWatch) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watches == nil {
		return false
	}
	w.watches[one] = true
	if one.op.progressNotify {
		w.endpoint.mu.Lock()
		defer w.endpoint.mu.Unlock()
		w.endpoint.notified[one] = true
		w.endpoint.interest.add(+1)
	}
	return true
}

func (w *watcher) remove(one *clientWatch) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.watches, one)
	if one.op.progressNotify {
		w.endpoint.mu.Lock()
		defer w.endpoint.mu.Unlock()
		delete(w.endpoint.notified, one)
		w.endpoint.interest.add(-1)
	}
}
