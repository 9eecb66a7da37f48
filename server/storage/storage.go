// Package storage is the control plane's datastore as a part: Karve's own engine, a
// database of the user's, or an etcd of the user's.
package storage

import (
	"context"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/kine"
)

// Config is what the part needs.
type Config struct {
	Location Location
	DataDir  string // the socket with the etcd API is in it

	// Lock is that of the built-in datastore's directory. Without a disk it may be of any.
	Lock *directory.Lock
	// MemoryLimit is that of the process; 0 is none.
	MemoryLimit int64
	// CAFile, CertFile and KeyFile are for TLS to a database or an etcd.
	CAFile, CertFile, KeyFile string
	// EtcdAPI is where the datastore is served beyond its socket; nil is nowhere.
	EtcdAPI *EtcdAPI

	// Contents returns what a datastore in memory begins with; nil is nothing.
	Contents func(context.Context) (*datastore.Dump, error)
	// Prepare changes the contents of the built-in datastore before anyone else reads
	// it; nil changes nothing.
	Prepare func(context.Context, *datastore.Engine) error

	// Dial makes the API server connect to the socket with the etcd API, as upstream's does,
	// in place of calls in this process.
	Dial bool

	Log *logrus.Logger
	// Status gets in a few words what a start waits for, and OnProgress how far it is.
	Status     func(string)
	OnProgress func(what string, done, total int64)
	// Step is called when a step of the start begins, and what it returns when it ends.
	Step func(name string) (done func())
}

// Connection is what the part hands over: how the API server reaches the datastore.
type Connection struct {
	Endpoints                 []string
	CAFile, CertFile, KeyFile string
	// Store takes the first objects of a new cluster; nil: the API server makes them.
	Store Store
	// Engine is the built-in datastore; nil: the datastore is another.
	Engine *datastore.Engine
}

// endpointOf is where the API server finds the datastore behind shim.
func (c Config) endpointOf(shim *kine.Shim) string {
	if c.Dial {
		return shim.Endpoint()
	}
	return shim.LocalEndpoint()
}

// Storage is the part.
type Storage struct {
	config     Config
	connection Connection
}

// New is the part before it runs.
func New(c Config) *Storage { return &Storage{config: c} }

// Connection is valid as soon as Run has called ready.
func (s *Storage) Connection() Connection { return s.connection }

// Run opens the datastore and serves it until ctx ends. A failure that is found while the
// datastore is in use is reported by [lifecycle.Failed]; reads and watches go on until ctx ends.
func (s *Storage) Run(ctx context.Context, ready func()) error {
	where := s.config.Location
	switch {
	case where.Etcd != nil:
		e := NewEtcd(EtcdConfig{
			Endpoints: where.Etcd, Prefix: "/registry",
			CAFile: s.config.CAFile, CertFile: s.config.CertFile, KeyFile: s.config.KeyFile,
			Option: endpointOption, FileOptions: "--datastore-cafile, --datastore-certfile, --datastore-keyfile",
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

// endpointOption names the datastore, in messages.
const endpointOption = "datastore-endpoint"
