package kine

import (
	"context"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
)

// NewClient is a client of a backend that this process serves, by the endpoint of
// [Shim.LocalEndpoint]. Its calls are function calls: no socket, no gRPC, nothing
// is marshalled. It is what the API server asks of an etcd client, and no more:
// Auth and Cluster are nil.
//
// A client is little more than a pointer; make one for each user. Close ends the
// watches of that one only. Values that it answers must not be changed.
func NewClient(endpoint string) (*kubernetes.Client, error) {
	l, err := find(endpoint)
	if err != nil {
		return nil, err
	}
	client := clientv3.NewCtxClient(l.ctx)
	setField(client, "endpoints", []string{endpoint}) // SetEndpoints needs a connection
	client.KV = clientv3.NewKVFromKVClient(localKV{l}, client)
	client.Lease = clientv3.NewLeaseFromLeaseClient(localLease{l}, client, 0)
	client.Maintenance = clientv3.NewMaintenanceFromMaintenanceClient(localMaintenance{l}, client)
	watcher := newWatcher(l)
	client.Watcher = watcher
	return &kubernetes.Client{Client: client, Kubernetes: direct{l, watcher}}, nil
}

// direct is kubernetes.Interface on a backend; upstream's own is the model
// (go.etcd.io/etcd/client/v3/kubernetes/client.go).
type direct struct {
	*local
	watcher *watcher
}

// pager is a backend that lists and counts in one call.
type pager interface {
	page(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, int64, error)
}

func (d direct) Get(ctx context.Context, key string, opts kubernetes.GetOptions) (resp kubernetes.GetResponse, err error) {
	revision, kv, err := d.backend.Get(ctx, key, opts.Revision, false)
	if err != nil {
		return resp, clientv3.ContextError(ctx, err)
	}
	// A read of a key that is not there, the resource's prefix, is how the API
	// server asks for the newest revision, to wait until its cache knows of it
	// (etcd3/store.go, GetCurrentResourceVersion). It would ask for progress
	// within 100 ms; this is the same, at once.
	if kv == nil && opts.Revision == 0 {
		d.watcher.tell(revision)
	}
	resp.Revision, resp.KV = revision, optionalKV(kv)
	return resp, nil
}

func (d direct) List(ctx context.Context, prefix string, opts kubernetes.ListOptions) (resp kubernetes.ListResponse, err error) {
	start, end := prefix, clientv3.GetPrefixRangeEnd(prefix)
	if opts.Continue != "" {
		start = opts.Continue
	}
	var kvs []*server.KeyValue
	if p, ok := d.backend.(pager); ok {
		resp.Revision, kvs, resp.Count, err = p.page(ctx, start, end, opts.Limit, opts.Revision, false)
	} else {
		resp.Revision, kvs, resp.Count, err = d.listAndCount(ctx, start, end, opts)
	}
	if err != nil {
		return kubernetes.ListResponse{}, clientv3.ContextError(ctx, err)
	}
	resp.Kvs = make([]*mvccpb.KeyValue, len(kvs))
	for i, kv := range kvs {
		resp.Kvs[i] = clientKV(kv)
	}
	return resp, nil
}

// listAndCount asks for one key too many, as kine's bridge does: only if it is
// there do the keys have to be counted.
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
	if expectedRevision == 0 { // for a backend that is any revision; here it is no key
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

func optionalKV(kv *server.KeyValue) *mvccpb.KeyValue {
	if kv == nil {
		return nil
	}
	return clientKV(kv)
}
