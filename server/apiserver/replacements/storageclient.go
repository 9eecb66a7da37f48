package replacements

import (
	"context"
	"time"
	_ "unsafe" // for go:linkname

	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.uber.org/zap"
	endpointsrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storage/storagebackend"

	"github.com/karve-k8s/karve/internal/fence"
	"github.com/karve-k8s/karve/kine/inprocess"
)

// newStorageClient creates every storage client in the chain: those of resources, probes,
// compaction, and size metrics (k8s.io/apiserver pkg/storage/storagebackend/factory/etcd3.go).
// Upstream made it a variable for its own tests. TestStorageClientIsUpstreams fails if
// upstream renames it.
//
//go:linkname newStorageClient k8s.io/apiserver/pkg/storage/storagebackend/factory.newETCD3Client
var newStorageClient func(storagebackend.TransportConfig) (*kubernetes.Client, error)

// upstreamsStorageClient creates a client of a real etcd.
var upstreamsStorageClient = newStorageClient

// etcdLogger is the logger of every etcd client in the chain. Its lines are dropped, because callers get the errors.
// Upstream makes it write to standard error in its init, and offers no way to change that (k8s.io/apiserver
// pkg/storage/storagebackend/factory/etcd3.go). TestEtcdLoggerIsUpstreams fails if upstream
// renames the variable. It is set once, because running servers read it.
//
//go:linkname etcdLogger k8s.io/apiserver/pkg/storage/storagebackend/factory.etcd3ClientLogger
var etcdLogger *zap.Logger

// upstreamsEtcdLogger is upstream's own.
var upstreamsEtcdLogger = etcdLogger

// The client calls a datastore of this process directly, without a connection. The endpoint
// says which datastore, because a process can have several servers.
func init() {
	etcdLogger = zap.NewNop()
	newStorageClient = func(c storagebackend.TransportConfig) (*kubernetes.Client, error) {
		if len(c.ServerList) != 1 || !inprocess.IsEndpoint(c.ServerList[0]) {
			client, err := upstreamsStorageClient(c)
			if err == nil {
				client.Kubernetes = fenced{client.Kubernetes}
				go reconnect(client.Ctx(), client.ActiveConnection(), reconnectEvery)
			}
			return client, err
		}
		client, err := inprocess.NewClient(c.ServerList[0])
		if err != nil {
			return nil, err
		}
		client.Kubernetes = fenced{timed{client.Kubernetes}}
		return client, nil
	}
}

// StorageClient creates a storage client as those of the chain are created.
func StorageClient(c storagebackend.TransportConfig) (*kubernetes.Client, error) {
	return newStorageClient(c)
}

// fenced refuses a write whose sender has taken it back: a former leader.
type fenced struct{ kubernetes.Interface }

func (f fenced) OptimisticPut(ctx context.Context, key string, value []byte, revision int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	if err := fence.Check(ctx); err != nil {
		return kubernetes.PutResponse{}, err
	}
	return f.Interface.OptimisticPut(ctx, key, value, revision, opts)
}

func (f fenced) OptimisticDelete(ctx context.Context, key string, revision int64, opts kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	if err := fence.Check(ctx); err != nil {
		return kubernetes.DeleteResponse{}, err
	}
	return f.Interface.OptimisticDelete(ctx, key, revision, opts)
}

// timed adds the duration of a call to the storage latency of its API request. Upstream does
// that in client.KV, which upstream's client.Kubernetes uses and Karve's does not
// (k8s.io/apiserver pkg/storage/etcd3/latency_tracker.go).
type timed struct{ kubernetes.Interface }

func track(ctx context.Context, began time.Time) {
	endpointsrequest.TrackStorageLatency(ctx, time.Since(began))
}

func (t timed) Get(ctx context.Context, key string, opts kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	defer track(ctx, time.Now())
	return t.Interface.Get(ctx, key, opts)
}

func (t timed) List(ctx context.Context, prefix string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	defer track(ctx, time.Now())
	return t.Interface.List(ctx, prefix, opts)
}

func (t timed) Count(ctx context.Context, prefix string, opts kubernetes.CountOptions) (int64, error) {
	defer track(ctx, time.Now())
	return t.Interface.Count(ctx, prefix, opts)
}

func (t timed) OptimisticPut(ctx context.Context, key string, value []byte, revision int64, opts kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	defer track(ctx, time.Now())
	return t.Interface.OptimisticPut(ctx, key, value, revision, opts)
}

func (t timed) OptimisticDelete(ctx context.Context, key string, revision int64, opts kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	defer track(ctx, time.Now())
	return t.Interface.OptimisticDelete(ctx, key, revision, opts)
}
