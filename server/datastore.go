package server

import (
	"context"
	"time"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/snapshots"
	"github.com/karve-k8s/karve/server/storage"
)

// location is what --datastore-endpoint and --durability say together.
func (c Config) location() (storage.Location, error) {
	return storage.Parse(c.DatastoreEndpoint, c.Durability)
}

// builtIn reports whether the datastore is Karve's own engine, on a disk or in memory.
func (c Config) builtIn() bool {
	where, err := c.location()
	return err == nil && where.BuiltIn()
}

// ownsStorage reports that no other process has the same storage: it is neither an
// etcd's nor a database's, and --etcd-listen offers it to nobody.
func (c Config) ownsStorage() bool { return c.builtIn() && c.EtcdListen == "" }

// fork is what --fork-from asks for.
func (c Config) fork() (snapshots.Fork, error) {
	where, err := c.location()
	if err != nil {
		return snapshots.Fork{}, err
	}
	return snapshots.NewFork(c.ForkFrom, c.DataDir, where)
}

func (s *controlPlane) makeStorage(fork snapshots.Fork) error {
	where, err := s.location()
	if err != nil {
		return err
	}
	lock := s.lock
	if s.storeLock != nil {
		lock = s.storeLock
	}
	s.storage = storage.New(storage.Config{
		Dial:     !s.switches().On(deviations.StorageClient),
		Location: where, DataDir: s.DataDir, Lock: lock, MemoryLimit: s.MemoryLimit,
		CAFile: s.DatastoreCAFile, CertFile: s.DatastoreCertFile, KeyFile: s.DatastoreKeyFile,
		EtcdAPI:  s.servedEtcd(),
		Contents: fork.Contents, Prepare: fork.Prepare,
		Log: s.log, Status: func(text string) { _ = s.systemd.Status(text) },
		OnProgress: newStartProgress(s.systemd, time.Now).report,
		Step:       s.stepsOf(datastorePart),
	})
	return nil
}

func (s *controlPlane) controlOptions() snapshots.Options {
	return snapshots.Options{DataDir: s.DataDir, Log: s.log, Connect: func() snapshots.Connection {
		engine := s.storage.Connection().Engine
		return snapshots.Connection{
			Engine: engine, Ready: s.up.Load, Forget: s.forgetAbsent,
			CaughtUp: func(ctx context.Context, done *datastore.ResetResult) error {
				return s.awaitInformers(ctx, engine, done)
			},
		}
	}}
}
