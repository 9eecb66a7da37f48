package inprocess

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// watcher has the watches of one client.
type watcher struct {
	endpoint *Endpoint

	mu      sync.Mutex
	watches map[*clientWatch]bool // nil when closed
}

// clientWatch is one watch.
type clientWatch struct {
	stream string // a request for progress is for all watches of a stream
	cursor Cursor
	least  int64        // the first revision that a progress may have: as in etcd, none before the start
	told   atomic.Int64 // the newest revision that the reader knows
	cancel context.CancelFunc
	out    chan clientv3.WatchResponse
	op     watchOptions
	wakes  atomic.Int64 // since a goroutine began to read; 0: none reads
	done   func()       // called when the watch has ended
}

// watchOptions are options of a watch.
type watchOptions struct {
	createdNotify, progressNotify, prevKV, filterPut, filterDelete bool
}

func newWatcher(e *Endpoint) *watcher {
	return &watcher{endpoint: e, watches: map[*clientWatch]bool{}}
}

// Watch begins a watch, as etcd's client does, with two differences. A response is never split
// (WithFragment). A slow reader does not fill the memory: it is cut off when the events that
// it has not read are compacted.
func (w *watcher) Watch(ctx context.Context, key string, opts ...clientv3.OpOption) clientv3.WatchChan {
	op := clientv3.OpGet(key, opts...)
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(w.endpoint.ctx, cancel)
	one := &clientWatch{
		stream: stream(ctx),
		cancel: func() { stop(); cancel() },
		out:    make(chan clientv3.WatchResponse, 1),
		op: watchOptions{
			createdNotify: op.IsCreatedNotify(), progressNotify: op.IsProgressNotify(), prevKV: op.IsPrevKV(),
			filterPut: op.IsFilterPut(), filterDelete: op.IsFilterDelete(),
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
		one.out <- clientv3.WatchResponse{Header: &pb.ResponseHeader{Revision: opened}, Created: true}
	}
	one.done = func() {
		one.cursor.Close()
		w.remove(one)
	}
	_, polled := one.cursor.(Poller)
	begin := func() { go one.run(ctx) }
	if polled {
		context.AfterFunc(ctx, one.cursor.Close) // Close wakes it
		begin = func() { one.wake(ctx) }
	}
	var hold time.Duration
	if op.Rev() > 0 && (op.Rev() <= opened || !polled) { // a database does not tell whether there is history
		hold = w.endpoint.paced.Hold(string(op.KeyBytes()), string(op.RangeBytes()), op.Rev())
	}
	if hold == 0 {
		begin()
	} else {
		time.AfterFunc(hold, begin)
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

// wake makes a goroutine read the poller until there is no more. There is one goroutine at a
// time, because the next wake may come while it passes on what it has read.
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
				return // c.wakes stays above 0, so no wake begins another
			}
			more = left
		}
		if c.wakes.CompareAndSwap(wakes, 0) {
			return
		}
	}
}

// pass passes on a response. Its error is that of ctx.
func (c *clientWatch) pass(ctx context.Context, revision int64, events []*clientv3.Event) error {
	if len(events) > 0 {
		if events = c.op.filter(events); len(events) == 0 {
			return nil
		}
	}
	known := revision
	if n := len(events); n > 0 {
		known = events[n-1].Kv.ModRevision // the API server does not read the header of a response with events
	} else if revision < c.least {
		return nil
	}
	c.told.Store(known) // before it is sent: the reader will get it
	select {
	case c.out <- clientv3.WatchResponse{Header: &pb.ResponseHeader{Revision: revision}, Events: events}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// end sends the reason for the end, unless the client ended the watch, and closes it.
func (c *clientWatch) end(ctx context.Context, err error) {
	if c.done != nil {
		defer c.done()
	}
	defer close(c.out)
	defer c.cancel()
	if ctx.Err() != nil || errors.Is(err, context.Canceled) {
		return
	}
	resp := clientv3.WatchResponse{Header: new(pb.ResponseHeader), Canceled: true}
	if gone := (CompactedError{}); errors.As(err, &gone) {
		resp.Header.Revision, resp.CompactRevision = gone.Current, gone.Compacted
	} else {
		resp.CancelReason = status.Convert(err).Message()
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

// RequestProgress makes every watch with the same metadata as ctx report its revision as soon
// as it has passed on all events up to it.
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

// tell makes the watches with progressNotify report a revision that their reader is about to
// wait for.
func (w *watcher) tell(revision int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for one := range w.watches {
		if one.op.progressNotify && one.told.Load() < revision {
			one.cursor.RequestProgress()
		}
	}
}

// stream distinguishes watches as etcd's client does, which opens a stream for each metadata
// (client/v3/watch.go, streamKeyFromCtx). The API server separates the watch of its cache from
// those of clients in this way.
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
	}
}
