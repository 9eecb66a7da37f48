package inprocess

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/kine/etcdapi"
)

// engine is the engine as a store, with nothing between it and the client.
type engine struct{ *datastore.Engine }

var _ SpaceKeeper = engine{}

// Engine is the store of an engine, which must be open.
func Engine(e *datastore.Engine) Store { return engine{e} }

func (e engine) Start(context.Context) error { return nil } // an open engine runs

func (e engine) CurrentRevision(context.Context) (int64, error) { return e.Revision(), nil }

func (e engine) WaitFor(ctx context.Context, revision int64) { e.Engine.WaitFor(ctx, revision) }

func (e engine) Watch(_ context.Context, key, end string, revision int64, prevKV bool, wake func()) (Cursor, int64, error) {
	watcher, err := e.Engine.Watch(datastore.WatchRequest{Key: key, End: end, StartRevision: revision, PrevKV: prevKV, Wake: wake})
	if err != nil {
		return nil, 0, e.watchError(err)
	}
	return engineCursor{e, watcher}, watcher.Opened(), nil
}

func (e engine) watchError(err error) error {
	if errors.Is(err, datastore.ErrCompacted) {
		return CompactedError{e.Revision(), e.CompactRevision()}
	}
	return etcdapi.Status(err)
}

// firstChunk is the number of keys in the first chunk. A chunk has about as many bytes as in etcd,
// but there is nothing to encode that would have to begin small.
const firstChunk = 500

func (e engine) List(ctx context.Context, r *pb.RangeRequest) (all []*pb.RangeResponse, err error) {
	chunks, err := etcdapi.NewChunks(e.Engine, r, firstChunk)
	if err != nil {
		return nil, err
	}
	for chunks.More() {
		chunk, err := chunks.Next(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, chunk)
	}
	return all, nil
}

func (e engine) Client(awaited func(revision int64)) kubernetes.Interface {
	return engineClient{e.Engine, awaited}
}

// engineClient is kubernetes.Interface on the engine. Each method does what
// upstream's transaction does (go.etcd.io/etcd/client/v3/kubernetes/client.go).
type engineClient struct {
	engine  *datastore.Engine
	awaited func(revision int64)
}

// failure is err as a client of etcd has it, except for a full disk.
func failure(ctx context.Context, err error) error {
	if errors.Is(err, datastore.ErrNoSpace) {
		return noSpace(err)
	}
	return clientv3.ContextError(ctx, etcdapi.Status(err))
}

func (c engineClient) Get(ctx context.Context, key string, opts kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	resp, err := c.engine.Range(ctx, datastore.RangeRequest{Key: key, Revision: opts.Revision})
	if err != nil {
		return kubernetes.GetResponse{}, failure(ctx, err)
	}
	if len(resp.KVs) == 0 && opts.Revision == 0 {
		c.awaited(resp.Revision)
	}
	return kubernetes.GetResponse{Revision: resp.Revision, KV: first(resp)}, nil
}

func (c engineClient) List(ctx context.Context, prefix string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	req := datastore.RangeRequest{Key: prefix, End: datastore.PrefixEnd(prefix), Limit: opts.Limit, Revision: opts.Revision}
	if opts.Continue != "" {
		req.Key = opts.Continue
	}
	resp, err := c.engine.Range(ctx, req)
	if err != nil {
		return kubernetes.ListResponse{}, failure(ctx, err)
	}
	return kubernetes.ListResponse{Revision: resp.Revision, Kvs: etcdapi.KeyValues(resp.KVs), Count: resp.Count}, nil
}

func (c engineClient) Count(ctx context.Context, prefix string, _ kubernetes.CountOptions) (int64, error) {
	resp, err := c.engine.Range(ctx, datastore.RangeRequest{Key: prefix, End: datastore.PrefixEnd(prefix), CountOnly: true})
	if err != nil {
		return 0, failure(ctx, err)
	}
	return resp.Count, nil
}

func (c engineClient) OptimisticPut(ctx context.Context, key string, value []byte, expectedRevision int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	if len(key)+len(value) > maxRequest {
		return kubernetes.PutResponse{}, rpctypes.ErrRequestTooLarge
	}
	put := datastore.Op{Put: &datastore.PutRequest{Key: key, Value: value, Lease: int64(opts.LeaseID)}}
	revision, kv, succeeded, err := c.optimistic(ctx, key, expectedRevision, put, opts.GetOnFailure)
	return kubernetes.PutResponse{Revision: revision, KV: kv, Succeeded: succeeded}, err
}

func (c engineClient) OptimisticDelete(ctx context.Context, key string, expectedRevision int64, opts kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	remove := datastore.Op{Delete: &datastore.DeleteRequest{Key: key}}
	revision, kv, succeeded, err := c.optimistic(ctx, key, expectedRevision, remove, opts.GetOnFailure)
	return kubernetes.DeleteResponse{Revision: revision, KV: kv, Succeeded: succeeded}, err
}

// optimistic does op if key is at revision; 0 means that the key does not exist. Otherwise, if
// get is set, it reads the key.
func (c engineClient) optimistic(ctx context.Context, key string, revision int64, op datastore.Op, get bool) (int64, *mvccpb.KeyValue, bool, error) {
	req := datastore.TxnRequest{
		Compare: []datastore.Compare{{Key: key, Target: datastore.CompareModRevision, Number: revision}},
		Then:    []datastore.Op{op},
	}
	if get {
		req.Else = []datastore.Op{{Range: &datastore.RangeRequest{Key: key}}}
	}
	resp, err := c.engine.Txn(ctx, req)
	if err != nil {
		return 0, nil, false, failure(ctx, err)
	}
	if resp.Succeeded || !get {
		return resp.Revision, nil, resp.Succeeded, nil
	}
	return resp.Revision, first(resp.Responses[0].Range), false, nil
}

func first(resp *datastore.RangeResponse) *mvccpb.KeyValue {
	if len(resp.KVs) == 0 {
		return nil
	}
	return etcdapi.KeyValue(&resp.KVs[0])
}

// maxRequest is the largest write, key and value together. It is etcd's default for
// --max-request-bytes, so an object that fits into Karve fits into etcd.
const maxRequest = 1536 * 1024

// engineCursor is a cursor of the engine.
type engineCursor struct {
	store   engine
	watcher *datastore.Watcher
}

func (c engineCursor) Next(ctx context.Context) (int64, []*clientv3.Event, error) {
	resp, err := c.watcher.Next(ctx)
	if err != nil {
		return 0, nil, c.store.watchError(err)
	}
	return resp.Revision, clientEvents(resp), nil
}

func (c engineCursor) Poll() (revision int64, events []*clientv3.Event, some, more bool, err error) {
	resp, more, err := c.watcher.Poll()
	if err != nil {
		return 0, nil, false, false, c.store.watchError(err)
	}
	if resp == nil {
		return 0, nil, false, more, nil
	}
	return resp.Revision, clientEvents(resp), true, more, nil
}

func clientEvents(resp *datastore.WatchResponse) []*clientv3.Event {
	if len(resp.Events) == 0 {
		return nil
	}
	events := make([]*clientv3.Event, len(resp.Events))
	for i := range resp.Events {
		events[i] = (*clientv3.Event)(etcdapi.Event(&resp.Events[i]))
	}
	return events
}

func (c engineCursor) RequestProgress() { c.watcher.RequestProgress() }
func (c engineCursor) Close()           { c.watcher.Close() }
