// Package storage has the part of the control plane that provides the datastore: Karve's own
// engine, the user's database, or the user's etcd.
package storage

import (
	"context"
	"time"

	"github.com/sirupsen/logrus"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/inprocess"
	"github.com/karve-k8s/karve/kine/location"
)

// Config is the configuration of the part.
type Config struct {
	Location location.Location
	DataDir  string // has the socket of the engine's etcd API

	// Lock is the lock of the built-in datastore's directory. A datastore in memory needs none of
	// its own, so it may be the lock of any directory.
	Lock *directory.Lock
	// MemoryLimit is the process' soft memory limit in bytes; 0 means none.
	MemoryLimit int64
	// CAFile, CertFile and KeyFile are for TLS to a database or an etcd.
	CAFile, CertFile, KeyFile string
	// EtcdAPI is the listener of --etcd-listen for the engine; nil means the socket only.
	EtcdAPI *EtcdAPI

	// Contents returns the initial contents of a datastore in memory; nil means empty.
	Contents func(context.Context) (*datastore.Dump, error)
	// Dial makes the API server connect to the socket of the engine's etcd API, as upstream does. Without
	// it, the API server calls the engine in this process.
	Dial bool

	Log *logrus.Logger
	// Status is called with a short text on what startup waits for, OnProgress with its progress.
	Status     func(string)
	OnProgress func(what string, done, total int64)
	// Committed is called for each commit of the built-in datastore. It may be nil.
	Committed func(took time.Duration)
}

// Connection is what the part hands over: it says how the API server reaches the datastore.
type Connection struct {
	Endpoints                 []string
	CAFile, CertFile, KeyFile string
	// Ask calls do with a client of the datastore.
	Ask func(ctx context.Context, do func(context.Context, clientv3.KV) error) error
	// Store writes the first objects of a new cluster. If it is nil, the API server creates them.
	Store Store
	// Engine is the built-in datastore; nil with any other datastore.
	Engine *datastore.Engine
}

// endpointOf returns how the API server reaches the engine behind shim.
func (c Config) endpointOf(shim *kine.Shim) string {
	if c.Dial {
		return shim.Endpoint()
	}
	return shim.LocalEndpoint()
}

// ClusterRecord is the key, below the API server's prefix, of what the servers share that use one
// datastore (package membership). It may be there before the first objects are.
const ClusterRecord = "karve/cluster"

// asking returns Connection.Ask for a datastore that this process serves at url.
func asking(url string) func(context.Context, func(context.Context, clientv3.KV) error) error {
	return func(ctx context.Context, do func(context.Context, clientv3.KV) error) error {
		client, err := inprocess.NewClient(url)
		if err != nil {
			return err
		}
		defer client.Close()
		return do(ctx, client.KV)
	}
}

// Storage is the part that provides the datastore.
type Storage struct {
	config     Config
	connection Connection
}

// New returns the part. It opens the datastore in Run.
func New(c Config) *Storage { return &Storage{config: c} }

// Connection is valid once Run has called ready.
func (s *Storage) Connection() Connection { return s.connection }

// Run opens the datastore and serves it until ctx ends. It reports later failures of the datastore
// with [lifecycle.Failed]. Reads and watches then still work until ctx ends.
func (s *Storage) Run(ctx context.Context, ready func()) error {
	where := s.config.Location
	switch {
	case where.Etcd != nil:
		e := NewEtcd(EtcdConfig{
			Endpoints: where.Etcd, Prefix: "/registry",
			CAFile: s.config.CAFile, CertFile: s.config.CertFile, KeyFile: s.config.KeyFile,
			Option: location.Option, FileOptions: "--datastore-cafile, --datastore-certfile, --datastore-keyfile",
			Log: s.config.Log, Status: s.config.Status,
		})
		return e.Run(ctx, func() {
			s.connection = e.Connection()
			ready()
		})
	case where.External != nil:
		return s.useExternal(ctx, ready)
	}
	return s.useEngine(ctx, ready)
}
