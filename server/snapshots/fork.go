package snapshots

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/kine/location"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/marker"
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
func NewFork(from, dataDir string, where location.Location) (Fork, error) {
	f := Fork{from: from, dataDir: dataDir, inMemory: where.InMemory()}
	var err error
	if !f.inMemory {
		f.storeDir, err = where.DirOnDisk(dataDir)
	}
	if from == "" {
		if err := snapshot.Unfinished(dataDir); err != nil {
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
func (f Fork) Make(ctx context.Context, trace *lifecycle.Trace, log *logrus.Logger) error {
	if f.from == "" {
		return nil
	}
	done := trace.Part("fork")
	made, err := snapshot.Fork(ctx, f.from, f.target())
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
func (f Fork) Contents(ctx context.Context) (*datastore.Dump, error) {
	if f.from == "" || !f.inMemory {
		return nil, nil
	}
	contents, err := snapshot.Contents(ctx, f.target())
	if err != nil {
		return nil, fmt.Errorf("--fork-from: %w", err)
	}
	return contents, nil
}

// Restore makes the cluster of a snapshot again (see [snapshot.Restore]). It takes the locks of both directories, which
// it makes if they do not exist.
func Restore(ctx context.Context, from string, open func() (io.ReadCloser, error), dataDir, storeDir string, files func(*snapshot.Snapshot) error) (*snapshot.Info, error) {
	for _, dir := range slices.Compact([]string{dataDir, storeDir}) {
		if err := atomicfile.MakeDir(dir); err != nil {
			return nil, err
		}
		lock, err := directory.Acquire(dir)
		if err != nil {
			return nil, fmt.Errorf("%w: stop the server, or name another --data-dir", err)
		}
		defer lock.Close()
	}
	if err := marker.Mark(dataDir); err != nil {
		return nil, err
	}
	return snapshot.Restore(ctx, from, snapshot.Target{DataDir: dataDir, StoreDir: storeDir, Drop: ofServers, Open: open}, files)
}

func (f Fork) target() snapshot.Target {
	return snapshot.Target{DataDir: f.dataDir, StoreDir: f.storeDir, Drop: ofServers}
}
