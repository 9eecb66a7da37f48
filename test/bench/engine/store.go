package engine

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"

	"github.com/karve-k8s/karve/datastore"
)

// errConflict says that a key is not at the revision of the benchmark's last write.
var errConflict = errors.New("key is at another revision")

// A store is a peer, with the calls that Kubernetes' storage layer makes.
type store interface {
	// put sets a key whose revision is the given one; 0 means that the key does not exist.
	put(ctx context.Context, key string, value []byte, revision int64) (int64, error)
	remove(ctx context.Context, key string, revision int64) error
	get(ctx context.Context, key string) (found int, err error)
	list(ctx context.Context, prefix, from string, limit int64) (found int, err error)
	count(ctx context.Context, prefix string) (int64, error)
	// watch begins after the newest revision, and is open when it returns. The function waits
	// for events and returns their revisions. It ends with ctx. A peer with streams spreads its
	// watches over this many.
	watch(ctx context.Context, prefix string, streams int) (func() ([]int64, error), error)
	// compact compacts the whole history.
	compact(ctx context.Context) error
}

// watchStreams is the number of streams for many watches. An API server has a stream for each
// resource, which is some dozens. Other clients of etcd open all their watches on one stream,
// which has a row of its own.
const watchStreams = 32

// A remote is a peer that is called through etcd's client, as the API server calls it.
type remote struct {
	client  *kubernetes.Client
	watches *atomic.Int64 // opened so far
}

func newRemote(client *kubernetes.Client) remote { return remote{client, new(atomic.Int64)} }

// dial connects to a peer with one connection, as Karve's API server does, and upstream's for most
// resources.
func dial(endpoint string) (remote, func(), error) {
	c, err := kubernetes.New(clientv3.Config{
		Endpoints:   []string{endpoint},
		DialTimeout: serveTimeout,
		Logger:      zap.NewNop(), // errors are returned as well
	})
	if err != nil {
		return remote{}, nil, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	return newRemote(c), func() { c.Close() }, nil
}

func (r remote) put(ctx context.Context, key string, value []byte, revision int64) (int64, error) {
	resp, err := r.client.OptimisticPut(ctx, key, value, revision, kubernetes.PutOptions{GetOnFailure: revision != 0})
	if err == nil && !resp.Succeeded {
		err = errConflict
	}
	return resp.Revision, err
}

func (r remote) remove(ctx context.Context, key string, revision int64) error {
	resp, err := r.client.OptimisticDelete(ctx, key, revision, kubernetes.DeleteOptions{GetOnFailure: true})
	if err == nil && !resp.Succeeded {
		err = errConflict
	}
	return err
}

func (r remote) get(ctx context.Context, key string) (int, error) {
	resp, err := r.client.Kubernetes.Get(ctx, key, kubernetes.GetOptions{})
	if err != nil || resp.KV == nil {
		return 0, err
	}
	return 1, nil
}

func (r remote) list(ctx context.Context, prefix, from string, limit int64) (int, error) {
	resp, err := r.client.List(ctx, prefix, kubernetes.ListOptions{Limit: limit, Continue: from})
	return len(resp.Kvs), err
}

func (r remote) count(ctx context.Context, prefix string) (int64, error) {
	return r.client.Count(ctx, prefix, kubernetes.CountOptions{})
}

func (r remote) watch(ctx context.Context, prefix string, streams int) (func() ([]int64, error), error) {
	// From a revision, as the API server does it.
	now, err := r.revision(ctx)
	if err != nil {
		return nil, err
	}
	// The client opens a stream for each set of metadata.
	ctx = metadata.AppendToOutgoingContext(ctx, "bench-stream", strconv.FormatInt(r.watches.Add(1)%int64(streams), 10))
	ch := r.client.Watch(ctx, prefix, clientv3.WithPrefix(), clientv3.WithRev(now+1), clientv3.WithCreatedNotify())
	next := func() ([]int64, error) {
		resp, ok := <-ch
		if !ok {
			return nil, fmt.Errorf("watch ended: %w", context.Cause(ctx))
		}
		revisions := make([]int64, len(resp.Events))
		for i, event := range resp.Events {
			revisions[i] = event.Kv.ModRevision
		}
		return revisions, resp.Err()
	}
	if _, err := next(); err != nil { // the response that the watch is open
		return nil, err
	}
	return next, nil
}

func (r remote) compact(ctx context.Context) error {
	now, err := r.revision(ctx)
	if err != nil {
		return err
	}
	_, err = r.client.Compact(ctx, now, clientv3.WithCompactPhysical())
	return err
}

func (r remote) revision(ctx context.Context) (int64, error) {
	resp, err := r.client.KV.Get(ctx, keyPrefix, clientv3.WithPrefix(), clientv3.WithLimit(1))
	if err != nil {
		return 0, err
	}
	return resp.Header.Revision, nil
}

// A direct is the engine in this process.
type direct struct{ engine *datastore.Engine }

func (d direct) put(ctx context.Context, key string, value []byte, revision int64) (int64, error) {
	req := datastore.TxnRequest{
		Compare: []datastore.Compare{{Key: key, Target: datastore.CompareModRevision, Number: revision}},
		Then:    []datastore.Op{{Put: &datastore.PutRequest{Key: key, Value: value}}},
	}
	if revision != 0 {
		req.Else = []datastore.Op{{Range: &datastore.RangeRequest{Key: key}}}
	}
	resp, err := d.engine.Txn(ctx, req)
	if err != nil {
		return 0, err
	}
	if !resp.Succeeded {
		return 0, errConflict
	}
	return resp.Revision, nil
}

func (d direct) remove(ctx context.Context, key string, revision int64) error {
	resp, err := d.engine.Txn(ctx, datastore.TxnRequest{
		Compare: []datastore.Compare{{Key: key, Target: datastore.CompareModRevision, Number: revision}},
		Then:    []datastore.Op{{Delete: &datastore.DeleteRequest{Key: key}}},
		Else:    []datastore.Op{{Range: &datastore.RangeRequest{Key: key}}},
	})
	if err == nil && !resp.Succeeded {
		err = errConflict
	}
	return err
}

func (d direct) get(ctx context.Context, key string) (int, error) {
	resp, err := d.engine.Range(ctx, datastore.RangeRequest{Key: key})
	if err != nil {
		return 0, err
	}
	return len(resp.KVs), nil
}

func (d direct) list(ctx context.Context, prefix, from string, limit int64) (int, error) {
	if from == "" {
		from = prefix
	}
	resp, err := d.engine.Range(ctx, datastore.RangeRequest{Key: from, End: datastore.PrefixEnd(prefix), Limit: limit})
	if err != nil {
		return 0, err
	}
	return len(resp.KVs), nil
}

func (d direct) count(ctx context.Context, prefix string) (int64, error) {
	resp, err := d.engine.Range(ctx, datastore.RangeRequest{Key: prefix, End: datastore.PrefixEnd(prefix), CountOnly: true})
	if err != nil {
		return 0, err
	}
	return resp.Count, nil
}

func (d direct) watch(ctx context.Context, prefix string, _ int) (func() ([]int64, error), error) {
	w, err := d.engine.Watch(datastore.WatchRequest{Key: prefix, End: datastore.PrefixEnd(prefix)})
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, w.Close)
	return func() ([]int64, error) {
		resp, err := w.Next(ctx)
		if err != nil {
			return nil, err
		}
		revisions := make([]int64, len(resp.Events))
		for i := range resp.Events {
			revisions[i] = resp.Events[i].KV.ModRevision
		}
		return revisions, nil
	}, nil
}

func (d direct) compact(ctx context.Context) error {
	return d.engine.Compact(ctx, d.engine.Revision(), true)
}
