package engine

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/inprocess"
)

// serveTimeout bounds the start of a peer.
const serveTimeout = 20 * time.Second

// A served peer serves the etcd API on a unix socket until it is closed.
type served struct {
	endpoint string
	close    func()
}

// servers starts the peers that are on a socket, by role. All use the same
// transport, and all sync a write to the disk before they answer it.
var servers = map[string]func(ctx context.Context, dir string) (*served, error){
	"karve-socket": serveEngine,
	"etcd":         serveEtcd,
}

// files are the files with the keys, below the directories of the peers.
var files = map[string]string{
	roleDirect:     datastore.EngineFile,
	roleClient:     datastore.EngineFile,
	"karve-socket": datastore.EngineFile,
	"etcd":         "etcd/member/snap/db",
}

func serveEngine(ctx context.Context, dir string) (*served, error) {
	shim, closeEngine, err := openShim(ctx, dir)
	if err != nil {
		return nil, err
	}
	return &served{endpoint: shim.Endpoint(), close: closeEngine}, nil
}

// openShim opens the engine and serves it as a Karve server does.
func openShim(ctx context.Context, dir string) (*kine.Shim, func(), error) {
	engine, closeEngine, err := openEngine(dir)
	if err != nil {
		return nil, nil, err
	}
	shim, err := kine.Serve(ctx, engine, dir)
	if err != nil {
		closeEngine()
		return nil, nil, err
	}
	return shim, func() { shim.Close(); closeEngine() }, nil
}

// openEngine opens Karve's engine with the default options of a server.
func openEngine(dir string) (*datastore.Engine, func(), error) {
	lock, err := directory.Acquire(dir)
	if err != nil {
		return nil, nil, err
	}
	engine, err := datastore.OpenEngine(lock, datastore.Options{})
	if err != nil {
		lock.Close()
		return nil, nil, fmt.Errorf("open engine: %w", err)
	}
	return engine, func() { engine.Close(); lock.Close() }, nil
}

// local opens the peers that share a process with their client, by role.
var local = map[string]func(ctx context.Context, dir string) (store, func(), error){
	roleDirect: func(_ context.Context, dir string) (store, func(), error) {
		engine, closeEngine, err := openEngine(dir)
		return direct{engine}, closeEngine, err
	},
	roleClient: func(ctx context.Context, dir string) (store, func(), error) {
		shim, closeShim, err := openShim(ctx, dir)
		if err != nil {
			return nil, nil, err
		}
		client, err := inprocess.NewClient(shim.LocalEndpoint())
		if err != nil {
			closeShim()
			return nil, nil, err
		}
		return newRemote(client), func() { client.Close(); closeShim() }, nil
	},
}

// serveEtcd starts a cluster of one etcd with its defaults, which include fsync.
func serveEtcd(ctx context.Context, dir string) (*served, error) {
	cfg := embed.NewConfig()
	cfg.Dir = filepath.Join(dir, "etcd")
	cfg.LogLevel = "error"
	cfg.LogOutputs = []string{os.DevNull}
	client := url.URL{Scheme: "unix", Path: filepath.Join(dir, "etcd.sock")}
	cfg.ListenClientUrls = []url.URL{client}             // etcd does not advertise a socket
	peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"} // a cluster of one has no peers
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, fmt.Errorf("start etcd: %w", err)
	}
	timeout := time.NewTimer(serveTimeout)
	defer timeout.Stop()
	select {
	case <-e.Server.ReadyNotify():
		return &served{endpoint: client.String(), close: e.Close}, nil
	case err = <-e.Err():
	case <-ctx.Done():
		err = ctx.Err()
	case <-timeout.C:
		err = fmt.Errorf("not ready after %v", serveTimeout)
	}
	e.Close()
	return nil, fmt.Errorf("start etcd: %w", err)
}
