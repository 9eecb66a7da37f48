package etcd

import (
	"context"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/kine"
)

// serveKarve serves Karve's etcd API on a unix socket, with an engine of its own, and
// returns the endpoint.
func serveKarve(ctx context.Context, t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	engine, err := datastore.OpenEngine(lock, datastore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	shim, err := kine.Serve(ctx, engine, dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shim.Close() })
	return shim.Endpoint()
}

// serveEtcd runs a cluster of one etcd with its defaults on a unix socket, and returns
// the endpoint.
func serveEtcd(ctx context.Context, t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	config := embed.NewConfig()
	config.Dir = filepath.Join(dir, "etcd")
	config.LogLevel, config.LogOutputs = "error", []string{os.DevNull}
	client, peer := url.URL{Scheme: "unix", Path: filepath.Join(dir, "etcd.sock")}, url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	config.ListenClientUrls = []url.URL{client} // etcd does not advertise a socket
	config.ListenPeerUrls, config.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	config.InitialCluster = config.InitialClusterFromName(config.Name)
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	select {
	case <-etcd.Server.ReadyNotify():
	case err := <-etcd.Err():
		t.Fatalf("etcd ended: %v", err)
	case <-ctx.Done():
		t.Fatalf("etcd is not ready: %v", context.Cause(ctx))
	}
	return client.String()
}
