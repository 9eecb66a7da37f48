package storage

import (
	"context"
	"errors"
	"fmt"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/admin"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/server/lifecycle"
)

// NodeLeases is the prefix of the keys that kubelets update every ten seconds. Leases for leader
// election have another prefix: the datastore must not forget which candidate won.
const NodeLeases = "/registry/leases/kube-node-lease/"

// The bounds of the engine's cache of values, if the user has not set its size. The cache gets a
// sixteenth of the memory limit. The lower bound is what an empty cluster needs, and the upper
// bound is the engine's own default.
const (
	leastCache = 4 << 20
	mostCache  = 64 << 20
)

func cacheBytes(limit int64) int64 {
	if limit == 0 {
		return mostCache
	}
	return min(max(limit/16, leastCache), mostCache)
}

// useEngine opens the engine and serves it. If the engine fails to write, the part fails.
// Everything that was acknowledged before is on the disk.
func (s *Storage) useEngine(ctx context.Context, ready func()) (err error) {
	engine, err := s.open(ctx)
	if err != nil {
		return err
	}
	told := false // whether the failure of the engine was reported
	defer func() {
		if closing := engine.Close(); !told { // otherwise Close returns the same error
			err = errors.Join(err, closing)
		}
	}()
	defer showFigures(engine)()
	shim, err := kine.Serve(ctx, engine, s.config.DataDir, s.listeners()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shim.Close()) }() // before the engine
	s.connection = Connection{
		Endpoints: []string{s.config.endpointOf(shim)},
		Store:     engineStore{engine, s.config.endpointOf(shim)},
		Engine:    engine,
		Ask:       asking(shim.LocalEndpoint()),
	}
	ready()
	select {
	case <-ctx.Done():
		return nil
	case <-engine.Failed():
		told = true
		lifecycle.Failed(ctx, s.failure(engine.Err()))
	case err := <-shim.Failed():
		lifecycle.Failed(ctx, err)
	}
	<-ctx.Done() // reads and watches work until the API server has stopped
	return nil
}

// open opens the engine, and logs what that found or changed.
func (s *Storage) open(ctx context.Context) (_ *datastore.Engine, err error) {
	log, where := s.config.Log, s.config.Location
	options := datastore.Options{
		Durability:     where.Durability,
		CacheBytes:     where.CacheBytes,
		OnCommit:       s.observeCommit,
		DeferredPrefix: NodeLeases,
		OnProgress:     s.config.OnProgress,
		OnFull: func(err error) {
			if err == nil {
				log.Info("the disk has room for the datastore again: writes work")
				return
			}
			log.Errorf("only deletes are accepted, other writes are refused: %v", err)
		},
	}
	if options.CacheBytes == 0 {
		options.CacheBytes = cacheBytes(s.config.MemoryLimit)
	}
	if s.config.Contents != nil && where.InMemory() {
		if options.Initial, err = s.config.Contents(ctx); err != nil {
			return nil, err
		}
	}
	engine, replaced, err := admin.Open(s.config.Lock, options)
	if err != nil {
		return nil, err
	}
	if replaced {
		log.Infof("finished the replacement of %s, in which a karve datastore restore or salvage was stopped; the old one is beside it, as %[1]s.before-…", engine.Path())
	}
	return engine, nil
}

// failure returns the part's error for an error of the engine.
func (s *Storage) failure(err error) error {
	if defect := (*datastore.PanicError)(nil); errors.As(err, &defect) {
		s.config.Log.Errorf("%v\n%s", defect, defect.Stack)
		return fmt.Errorf("the datastore has a defect (please report what the log says): %w", err)
	}
	return fmt.Errorf("the disk has failed: %w", err)
}
