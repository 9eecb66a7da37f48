package server

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/snapshot"
)

func certsPath(dataDir, name string) string { return filepath.Join(dataDir, "certs", name) }

// storeDir is the directory of the built-in datastore; empty is memory. An error says
// that the datastore is another.
func (c Config) storeDir() (string, error) {
	where, err := c.datastore()
	if err == nil && where.etcd == nil && where.external == nil && where.options.Durability == datastore.Memory {
		return "", nil
	}
	return DatastoreDir(c.DatastoreEndpoint, c.DataDir)
}

// checkFork looks at what --fork-from names, and that nobody starts half of a fork.
func checkFork(c Config) error {
	dir, err := c.storeDir()
	if c.ForkFrom == "" {
		if err := snapshot.Unfinished(c.DataDir, dir); err != nil {
			return fmt.Errorf("--data-dir: %w", err)
		}
		return nil
	}
	if err == nil {
		err = snapshot.Check(c.ForkFrom, c.DataDir, dir)
	}
	if err != nil {
		return fmt.Errorf("--fork-from: %w", err)
	}
	return nil
}

// fork makes the data directory of what --fork-from names, once.
func (s *controlPlane) fork(ctx context.Context) error {
	if s.ForkFrom == "" {
		return nil
	}
	dir, err := s.storeDir()
	if err != nil {
		return fmt.Errorf("--fork-from: %w", err)
	}
	done := s.trace.Part("fork")
	made, err := snapshot.Fork(ctx, s.ForkFrom, s.DataDir, dir)
	if err != nil {
		return fmt.Errorf("--fork-from: %w", err)
	}
	done()
	if made.Already {
		s.log.Infof("%s is a fork of %s already: --fork-from changes nothing", s.DataDir, &made.Origin)
	} else {
		s.log.Infof("forked %s: %d keys at revision %d", s.ForkFrom, made.Keys, made.Revision)
	}
	return nil
}

// newFork tells whether the datastore is as a fork begins with it: no server has written
// to it.
func (s *controlPlane) newFork(engine *datastore.Engine, inMemory bool) bool {
	if s.ForkFrom == "" {
		return false
	}
	of := snapshot.OriginOf(s.DataDir)
	return inMemory || of != nil && engine.Revision() <= of.Revision
}

// forkedContents are what a datastore in memory begins with.
func (s *controlPlane) forkedContents(ctx context.Context) (contents *datastore.Contents, err error) {
	err = snapshot.WithFile(s.path(snapshot.FileName), func(from *snapshot.Snapshot) (err error) {
		contents, err = from.Contents(ctx, s.DataDir)
		return err
	})
	return contents, err
}
