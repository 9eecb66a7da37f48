package external

import (
	"context"
	"sync/atomic"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/etcdapi"
	"github.com/karve-k8s/karve/kine/inprocess"
)

// bridge is a backend as a store of clients in this process.
type bridge struct{ backend server.Backend }

// Serve begins to serve a database to clients in this process. Close the endpoint before the backend.
func Serve(ctx context.Context, backend server.Backend) (*inprocess.Endpoint, error) {
	// What is rare goes through kine's bridge. No client has its scheme, which is for lists of members.
	rare := server.New(backend, "", kine.ProgressInterval, kine.EtcdVersion)
	return inprocess.Serve(ctx, bridge{backend}, rare, kine.ProgressInterval)
}

func (b bridge) Start(ctx context.Context) error { return b.backend.Start(ctx) }

func (b bridge) CurrentRevision(ctx context.Context) (int64, error) {
	return b.backend.CurrentRevision(ctx)
}

func (b bridge) WaitFor(ctx context.Context, revision int64) {
	c, _, err := b.Watch(ctx, "\x00", "\x00", revision, false, nil)
	if err != nil {
		return
	}
	defer c.Close()
	c.Next(ctx)
}

func (b bridge) Watch(ctx context.Context, key, end string, revision int64, _ bool, _ func()) (inprocess.Cursor, int64, error) {
	if key == compactKey {
		key = compactKeyOfKine
	}
	if revision == 0 { // kine's backends take 0 for all of history
		current, err := b.backend.CurrentRevision(ctx)
		if err != nil {
			return nil, 0, err
		}
		revision = current + 1
	}
	c, err := openCursor(ctx, b.backend, key, end, revision)
	return c, revision - 1, err
}

// List answers with all keys at once: the client reads a list whole before it hands over the first
// key. The API server asks for whole objects of a range.
func (b bridge) List(ctx context.Context, r *pb.RangeRequest) ([]*pb.RangeResponse, error) {
	if err := etcdapi.CheckRangeStream(r); err != nil {
		return nil, err
	}
	if len(r.RangeEnd) == 0 || r.KeysOnly || r.CountOnly {
		return nil, server.ErrNotSupported
	}
	opts := kubernetes.ListOptions{Limit: r.Limit, Revision: r.Revision}
	revision, kvs, count, err := direct{backend: b.backend}.listAndCount(ctx, string(r.Key), string(r.RangeEnd), opts)
	if err != nil {
		return nil, err
	}
	return []*pb.RangeResponse{{
		Header: &pb.ResponseHeader{Revision: revision}, Kvs: clientKVs(kvs), More: count > int64(len(kvs)), Count: count,
	}}, nil
}

func (b bridge) Client(awaited func(revision int64)) kubernetes.Interface {
	return direct{b.backend, awaited}
}

// direct is kubernetes.Interface on a backend; upstream's own is the model
// (go.etcd.io/etcd/client/v3/kubernetes/client.go).
type direct struct {
	backend server.Backend
	awaited func(revision int64)
}

func (d direct) Get(ctx context.Context, key string, opts kubernetes.GetOptions) (resp kubernetes.GetResponse, err error) {
	revision, kv, err := d.backend.Get(ctx, key, opts.Revision, false)
	if err != nil {
		return resp, clientv3.ContextError(ctx, err)
	}
	if kv == nil && opts.Revision == 0 {
		d.awaited(revision)
	}
	resp.Revision, resp.KV = revision, optionalKV(kv)
	return resp, nil
}

func (d direct) List(ctx context.Context, prefix string, opts kubernetes.ListOptions) (resp kubernetes.ListResponse, err error) {
	start, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	if opts.Continue != "" {
		start = opts.Continue
	}
	revision, kvs, count, err := d.listAndCount(ctx, start, end, opts)
	if err != nil {
		return resp, clientv3.ContextError(ctx, err)
	}
	resp.Revision, resp.Count, resp.Kvs = revision, count, clientKVs(kvs)
	return resp, nil
}

// listAndCount reads one key more than the limit, as kine's bridge does. Only if that key
// exists do the keys have to be counted.
func (d direct) listAndCount(ctx context.Context, start, end string, opts kubernetes.ListOptions) (int64, []*server.KeyValue, int64, error) {
	limit := opts.Limit
	if limit > 0 {
		limit++
	}
	revision, kvs, err := d.backend.List(ctx, start, end, limit, opts.Revision, false)
	if err != nil || opts.Limit == 0 || int64(len(kvs)) <= opts.Limit {
		return revision, kvs, int64(len(kvs)), err
	}
	at := opts.Revision
	if at == 0 {
		at = revision
	}
	_, count, err := d.backend.Count(ctx, start, end, at)
	return revision, kvs[:opts.Limit], count, err
}

func (d direct) Count(ctx context.Context, prefix string, _ kubernetes.CountOptions) (int64, error) {
	_, count, err := d.backend.Count(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), 0)
	return count, clientv3.ContextError(ctx, err)
}

func (d direct) OptimisticPut(ctx context.Context, key string, value []byte, expectedRevision int64, opts kubernetes.PutOptions) (resp kubernetes.PutResponse, err error) {
	var kv *server.KeyValue
	if expectedRevision == 0 {
		resp.Revision, err = d.backend.Create(ctx, key, value, int64(opts.LeaseID))
		resp.Succeeded = err == nil
		if err == server.ErrKeyExists {
			err = nil
			if opts.GetOnFailure {
				resp.Revision, kv, err = d.backend.Get(ctx, key, 0, false)
			}
		}
	} else {
		resp.Revision, kv, resp.Succeeded, err = d.backend.Update(ctx, key, value, expectedRevision, int64(opts.LeaseID))
	}
	if err != nil {
		return kubernetes.PutResponse{}, clientv3.ContextError(ctx, err)
	}
	if opts.GetOnFailure && !resp.Succeeded {
		resp.KV = optionalKV(kv)
	}
	return resp, nil
}

func (d direct) OptimisticDelete(ctx context.Context, key string, expectedRevision int64, opts kubernetes.DeleteOptions) (resp kubernetes.DeleteResponse, err error) {
	var kv *server.KeyValue
	if expectedRevision == 0 { // a backend takes it for any revision; here it means that the key does not exist
		resp.Revision, kv, err = d.backend.Get(ctx, key, 0, false)
		resp.Succeeded = err == nil && kv == nil
	} else {
		resp.Revision, kv, resp.Succeeded, err = d.backend.Delete(ctx, key, expectedRevision)
	}
	if err != nil {
		return kubernetes.DeleteResponse{}, clientv3.ContextError(ctx, err)
	}
	if opts.GetOnFailure && !resp.Succeeded {
		resp.KV = optionalKV(kv)
	}
	return resp, nil
}

func clientKVs(kvs []*server.KeyValue) []*mvccpb.KeyValue {
	all := make([]*mvccpb.KeyValue, len(kvs))
	for i, kv := range kvs {
		all[i] = clientKV(kv)
	}
	return all
}

func optionalKV(kv *server.KeyValue) *mvccpb.KeyValue {
	if kv == nil {
		return nil
	}
	return clientKV(kv)
}

func clientEvent(e *server.Event) *clientv3.Event {
	out := &clientv3.Event{Kv: clientKV(e.KV)}
	if e.Delete {
		out.Type = clientv3.EventTypeDelete
	}
	if !e.Create && e.PrevKV != nil {
		out.PrevKv = clientKV(e.PrevKV)
	}
	for _, kv := range []*mvccpb.KeyValue{out.Kv, out.PrevKv} {
		if kv != nil {
			rename(kv)
		}
	}
	return out
}

// The key of the API server's compactor, and what kine's bridge makes of it
// (kine pkg/server/compact.go).
const (
	compactKey       = "compact_rev_key"
	compactKeyOfKine = "compact_rev_key_apiserver"
)

func rename(kv *mvccpb.KeyValue) {
	if string(kv.Key) == compactKeyOfKine {
		kv.Key = []byte(compactKey)
		kv.Version, kv.Value = server.DecodeVersion(kv.Value)
	}
}

func clientKV(kv *server.KeyValue) *mvccpb.KeyValue {
	return &mvccpb.KeyValue{
		Key: []byte(kv.Key), Value: kv.Value, Version: kv.Version, Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
	}
}

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
