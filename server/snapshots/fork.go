package snapshots

import (
	"context"
	"fmt"
	"path/filepath"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/server/startup"
	"github.com/karve-k8s/karve/server/storage"
	"github.com/karve-k8s/karve/snapshot"
)

// Fork is the parsed form of --fork-from.
type Fork struct {
	from     string // empty if there is no fork
	dataDir  string
	storeDir string // of the built-in datastore; empty if it is in memory
	inMemory bool
}

// NewFork reads --fork-from. It reports a source that cannot be used, and a data directory that has
// other contents or an unfinished fork. It changes nothing.
func NewFork(from, dataDir string, where storage.Location) (Fork, error) {
	f := Fork{from: from, dataDir: dataDir, inMemory: where.InMemory()}
	var err error
	if !f.inMemory {
		f.storeDir, err = where.DirOnDisk(dataDir)
	}
	if from == "" {
		if err := snapshot.Unfinished(dataDir, f.storeDir); err != nil {
			return f, fmt.Errorf("--data-dir: %w", err)
		}
		return f, nil
	}
	if err == nil {
		err = snapshot.Check(from, dataDir, f.storeDir)
	}
	if err != nil {
		return f, fmt.Errorf("--fork-from: %w", err)
	}
	return f, nil
}

// Make creates the data directory from the snapshot, unless it is a fork already.
func (f Fork) Make(ctx context.Context, trace *startup.Trace, log *logrus.Logger) error {
	if f.from == "" {
		return nil
	}
	done := trace.Part("fork")
	made, err := snapshot.Fork(ctx, f.from, f.dataDir, f.storeDir)
	if err != nil {
		return fmt.Errorf("--fork-from: %w", err)
	}
	done()
	if made.Already {
		log.Infof("%s is a fork of %s already: --fork-from changes nothing", f.dataDir, &made.Origin)
	} else {
		log.Infof("forked %s: %d keys at revision %d", f.from, made.Keys, made.Revision)
	}
	return nil
}

// Contents returns the initial contents of a datastore in memory, or nil if it starts empty.
func (f Fork) Contents(ctx context.Context) (contents *datastore.Dump, err error) {
	if f.from == "" || !f.inMemory {
		return nil, nil
	}
	err = snapshot.WithFile(filepath.Join(f.dataDir, snapshot.FileName), func(from *snapshot.Snapshot) (err error) {
		contents, err = from.Dump(ctx, f.dataDir)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("--fork-from: %w", err)
	}
	return contents, nil
}

// Prepare deletes what the servers of the forked cluster have written about themselves. It does
// nothing once a server has written to the fork.
func (f Fork) Prepare(ctx context.Context, engine *datastore.Engine) error {
	if f.from == "" {
		return nil
	}
	of := snapshot.OriginOf(f.dataDir)
	if untouched := f.inMemory || of != nil && engine.Revision() <= of.Revision; !untouched {
		return nil
	}
	return forgetServers(ctx, engine)
}
