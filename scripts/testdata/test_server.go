// Package testserver is put in the place of upstream's helper of the same name
// by scripts/upstream-storage: the same functions, with Karve's datastore
// instead of an embedded etcd.
package testserver

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"
	_ "unsafe" // for go:linkname

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/inprocess"
)

// NewTestConfig answers a configuration that RunEtcd does not look at.
func NewTestConfig(t testing.TB) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Dir = t.TempDir()
	return cfg
}

// RunEtcd starts a datastore and returns a client of it: the one of the API
// server's hot path, or, with KARVE_STORAGE=socket, etcd's over the socket.
func RunEtcd(t testing.TB, _ *embed.Config) *kubernetes.Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "karve")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := datastore.OpenEngine(lock, datastore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	shim, err := kine.Serve(t.Context(), engine, dir)
	if err != nil {
		t.Fatal(err)
	}
	client := connect(t, shim)
	t.Cleanup(func() {
		client.Close()
		shim.Close()
		engine.Close()
		lock.Close()
	})
	lists := storagetesting.NewKubernetesRecorder(client.Kubernetes)
	client.KV = storagetesting.NewKVRecorder(client.KV, lists)
	client.Kubernetes = lists
	return client
}

// newETCD3Client is upstream's constructor of clients, for the tests that let a
// storage make its own (k8s.io/apiserver pkg/storage/storagebackend/factory).
//
//go:linkname newETCD3Client k8s.io/apiserver/pkg/storage/storagebackend/factory.newETCD3Client
var newETCD3Client func(transportConfig) (*kubernetes.Client, error)

// transportConfig has the shape of storagebackend.TransportConfig, which imports
// packages whose tests import this one.
type transportConfig struct {
	ServerList                       []string
	KeyFile, CertFile, TrustedCAFile string
	EgressLookup                     func()
	TracerProvider                   interface{ notCalled() }
}

func connect(t testing.TB, shim *kine.Shim) *kubernetes.Client {
	if os.Getenv("KARVE_STORAGE") == "socket" {
		client, err := kubernetes.New(clientv3.Config{
			Endpoints:   []string{shim.Endpoint()},
			DialTimeout: 10 * time.Second,
			Logger:      zaptest.NewLogger(t, zaptest.Level(zapcore.ErrorLevel)).Named("etcd-client"),
		})
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	replace.Do(func() {
		if upstream := newETCD3Client; upstream != nil { // the package is linked
			newETCD3Client = func(c transportConfig) (*kubernetes.Client, error) {
				if len(c.ServerList) == 1 && inprocess.IsEndpoint(c.ServerList[0]) {
					return inprocess.NewClient(c.ServerList[0])
				}
				return upstream(c)
			}
		}
	})
	client, err := inprocess.NewClient(shim.LocalEndpoint())
	if err != nil {
		t.Fatal(err)
	}
	client.Kubernetes = counted{client.Kubernetes, client}
	return client
}

// counted lets upstream's recorder of client.KV see the reads that etcd's client
// would make through it and ours makes directly: tests count them. Each read is
// accompanied by one of nothing.
type counted struct {
	kubernetes.Interface
	client *kubernetes.Client
}

func (c counted) Get(ctx context.Context, key string, opts kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	c.client.KV.Get(ctx, "nothing", clientv3.WithCountOnly())
	return c.Interface.Get(ctx, key, opts)
}

func (c counted) List(ctx context.Context, prefix string, opts kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	c.client.KV.Get(ctx, "nothing", clientv3.WithCountOnly())
	return c.Interface.List(ctx, prefix, opts)
}

var replace sync.Once
