// Package testserver is put in the place of upstream's helper of the same name
// by scripts/upstream-storage: the same functions, with Karve's datastore
// instead of an embedded etcd.
package testserver

import (
	"os"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest"
	"google.golang.org/grpc"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/kine"
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
	lock, err := datastore.LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := datastore.OpenEngine(lock, datastore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	shim, err := kine.Serve(t.Context(), kine.NewBackend(engine), dir)
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
	client.KV = storagetesting.NewKVRecorder(client.KV)
	client.Kubernetes = storagetesting.NewKubernetesRecorder(client.Kubernetes)
	return client
}

func connect(t testing.TB, shim *kine.Shim) *kubernetes.Client {
	client, err := kubernetes.New(clientv3.Config{
		Endpoints:   []string{shim.Endpoint()},
		DialTimeout: 10 * time.Second,
		DialOptions: []grpc.DialOption{grpc.WithBlock()},
		Logger:      zaptest.NewLogger(t, zaptest.Level(zapcore.ErrorLevel)).Named("etcd-client"),
	})
	if err != nil {
		t.Fatal(err)
	}
	return client
}
