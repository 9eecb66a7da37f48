package main

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
)

// errConflict says that a key is not at the revision of the benchmark's last write.
var errConflict = errors.New("key is at another revision")

// A remote is a peer that is called through etcd's client, as the API server calls it.
type remote struct {
	client  *kubernetes.Client
	watches *atomic.Int64 // opened so far
}

// dial connects to a peer with one connection, as Karve's API server does, and upstream's for most
// resources.
func dial(endpoint string) (remote, error) {
	c, err := kubernetes.New(clientv3.Config{
		Endpoints:   []string{endpoint},
		DialTimeout: startTimeout,
		Logger:      zap.NewNop(), // errors are returned as well
	})
	if err != nil {
		return remote{}, fmt.Errorf("connect to %s: %w", endpoint, err)
	}
	return remote{c, new(atomic.Int64)}, nil
}

// put sets a key whose revision is the given one; 0 means that the key does not exist.
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

// watch begins after the newest revision, and is open when it returns. The function waits for events and
// returns their revisions. It ends with ctx. The watches are spread over this many streams.
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

// compact compacts the whole history.
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
