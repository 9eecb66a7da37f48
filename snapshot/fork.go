package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/kineimport"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/atomicfile"
)

// Files in the data directory of a fork.
const (
	// unfinished exists from before the first file of the fork until all are durable.
	unfinished = "fork-unfinished"
	// origin records what the fork was made of. It is the last file of the fork.
	origin = "fork-of"
)

// Origin says what a data directory was made of.
type Origin struct {
	Source string `json:"source"` // absolute path; unknown for forks of earlier releases
	Info
	// Starts counts how often a datastore in memory has begun with the snapshot.
	Starts int64 `json:"starts,omitempty"`
}

// mark is the content of the file unfinished.
type mark struct {
	Source string `json:"source"` // absolute path
	// ID is also in the database, and in no other that forks and restores make.
	ID int64 `json:"id"`
	// Restore says that the directory is to be the cluster itself, not a fork of it.
	Restore bool `json:"restore,omitempty"`
}

// The rows of the meta table by which a fork and a restore recognise the database that they have made. A restored fork is still that fork.
const (
	forkMeta    = "fork"
	restoreMeta = "restore"
)

func (m *mark) meta() string {
	if m.Restore {
		return restoreMeta
	}
	return forkMeta
}

// ForkOf returns the number of the fork that a database is of, or 0. The certificates and keys of a fork are also those of its original.
func ForkOf(ctx context.Context, database sqlitefile.Source) (id int64, err error) {
	err = database.View(ctx, func(_ context.Context, c *sqlitefile.Connection) error {
		metas, err := c.Metas()
		id = metas[forkMeta]
		return err
	})
	return id, err
}

// Forked is the result of [Fork].
type Forked struct {
	Origin
	// Already says that the directory was a fork of the source before. Nothing was changed.
	Already bool
}

// Check checks, without reading everything, whether source can be forked into a data
// directory and the directory of its datastore, which is empty if the datastore is in
// memory. It also returns nil for a directory that is already a fork of source.
func Check(source, dataDir, storeDir string) error {
	_, _, err := check(source, Target{DataDir: dataDir, StoreDir: storeDir})
	return err
}

// check returns what dataDir was made of, if it is already a fork of source, and the mark of
// a fork of source that is unfinished.
func check(source string, to Target) (already *Origin, begun *mark, err error) {
	dataDir, storeDir := to.DataDir, to.StoreDir
	path, err := filepath.Abs(source)
	if err != nil {
		return nil, nil, err
	}
	begun = readMark(dataDir)
	if begun != nil && begun.Restore != to.whole {
		return nil, nil, Unfinished(dataDir)
	}
	if begun != nil && begun.Source != path {
		return nil, nil, fmt.Errorf("%w: %s was to be a fork of %q; a fork of %s needs a data directory of its own", ErrHalf, dataDir, begun.Source, source)
	}
	for _, path := range occupied(dataDir, storeDir) {
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		switch {
		case begun == nil:
			if to.whole {
				return nil, nil, fmt.Errorf("%w: %s; restore into a data directory of its own, or move this one away", ErrOccupied, path)
			}
			already, err = alreadyOf(source, dataDir, path)
			return already, nil, err
		case !mayBeOf(begun, dataDir, storeDir, path):
			return nil, nil, fmt.Errorf("%w: %s, which the unfinished fork in %s has not made: use the --datastore-endpoint with which that was begun, or a data directory of its own", ErrOccupied, path, dataDir)
		}
	}
	if begun != nil {
		if _, err := os.Lstat(filepath.Join(dataDir, FileName)); err == nil {
			return nil, begun, nil // it goes on with that
		}
	}
	info, err := os.Stat(source)
	if err != nil {
		return nil, nil, err
	}
	if atomicfile.Same(source, filepath.Join(dataDir, FileName)) {
		return nil, nil, fmt.Errorf("%s is a part of the data directory, which the fork would replace: copy it elsewhere", source)
	}
	if !info.IsDir() {
		return nil, begun, WithSource(source, to.Open, func(*Snapshot) error { return nil })
	}
	if atomicfile.Same(source, dataDir) {
		return nil, nil, fmt.Errorf("%s is the data directory itself", source)
	}
	if _, err := os.Stat(filepath.Join(source, datastore.EngineFile)); err != nil {
		return nil, nil, fmt.Errorf("%w (a server that keeps its state elsewhere, or in memory, is forked by a file: karve backup create --data-dir %s FILE)", err, source)
	}
	return nil, begun, nil
}

// alreadyOf returns what the cluster in dataDir was made of, if that was source. A service starts with the same options again and
// again, also when the source has changed or is gone: only its path counts. Forks of v1.36.4 have no record of it.
func alreadyOf(source, dataDir, taken string) (*Origin, error) {
	if atomicfile.Same(source, dataDir) {
		return nil, fmt.Errorf("%s is the data directory itself", source)
	}
	of := OriginOf(dataDir)
	if of == nil {
		return nil, fmt.Errorf("%w: %s, and it is no fork; a fork needs a data directory of its own", ErrOccupied, taken)
	}
	path, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	if of.Source != "" && of.Source != path {
		return nil, fmt.Errorf("%w: %s is a fork of %s already: leave --fork-from out; a fork of %s needs a data directory of its own (karve reset FILE goes back to another backup of the same cluster)",
			ErrOccupied, dataDir, of, source)
	}
	return of, nil
}

// String names the source, and the time and revision of the snapshot.
func (o *Origin) String() string {
	source := o.Source
	if source == "" {
		source = "a backup"
	}
	return fmt.Sprintf("%s (of %s, revision %d)", source, o.Time.Format(time.RFC3339), o.Revision)
}

// OriginOf returns what a data directory was made of, or nil if it is no fork. Forks of
// releases that kept no record have the snapshot itself.
func OriginOf(dataDir string) *Origin {
	out := &Origin{}
	if text, err := os.ReadFile(filepath.Join(dataDir, origin)); err == nil && json.Unmarshal(text, out) == nil {
		return out
	}
	err := WithFile(filepath.Join(dataDir, FileName), func(s *Snapshot) error {
		out = &Origin{Info: s.Info}
		return nil
	})
	if err != nil {
		return nil
	}
	return out
}

// occupied lists the names that a cluster has and a fork makes.
func occupied(dataDir, storeDir string) []string {
	names := []string{filepath.Join(dataDir, certsName), filepath.Join(dataDir, FileName), filepath.Join(dataDir, origin)}
	dirs := []string{dataDir}
	if storeDir != "" && filepath.Clean(storeDir) != filepath.Clean(dataDir) {
		dirs = append(dirs, storeDir)
	}
	for _, dir := range dirs {
		for _, name := range []string{datastore.EngineFile, datastore.EngineFile + "-wal", kineimport.FileName} {
			names = append(names, filepath.Join(dir, name))
		}
	}
	return names
}

// readMark returns the mark of an unfinished fork, or nil if there is none. A fork with its
// last file is finished: then the mark has come back with a power cut, or a kill has left it.
func readMark(dataDir string) *mark {
	if _, err := os.Lstat(filepath.Join(dataDir, origin)); err == nil || errors.Is(err, fs.ErrPermission) { // others refuse a directory that may not be searched
		return nil
	}
	text, err := os.ReadFile(filepath.Join(dataDir, unfinished))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) { // dataDir is a file, which others refuse
		return nil
	}
	out := &mark{}
	if err != nil || json.Unmarshal(text, out) != nil {
		*out = mark{Source: strings.TrimSpace(string(text))} // an earlier release wrote only the path
	}
	return out
}

// mayBeOf reports whether an unfinished fork may have made a file. Of the files in dataDir, where
// its mark is, it reports that for every name that forks make: [writeSmall] compares the
// contents. The database may be in another directory, and has an id.
func mayBeOf(begun *mark, dataDir, storeDir, path string) bool {
	switch path {
	case filepath.Join(dataDir, certsName), filepath.Join(dataDir, FileName):
		return true
	case filepath.Join(storeDir, datastore.EngineFile):
		return storeDir != "" && madeBy(begun, path)
	}
	return false
}

func madeBy(begun *mark, database string) bool {
	var id int64
	err := sqlitefile.View(database, func(c *sqlitefile.Connection) error {
		metas, err := c.Metas()
		id = metas[begun.meta()]
		return err
	})
	return err == nil && id != 0 && id == begun.ID
}

// Unfinished returns [ErrHalf] for a data directory with an unfinished fork, which must not
// be started.
func Unfinished(dataDir string) error {
	begun := readMark(dataDir)
	if begun == nil {
		return nil
	}
	if begun.Restore {
		return fmt.Errorf("a restore was begun in %s and not finished: karve backup restore %s finishes it; or use another --data-dir", dataDir, begun.Source)
	}
	source := ""
	if begun.Source != "" {
		source = " " + begun.Source
	}
	return fmt.Errorf("%w: %s: start with --fork-from%s, which finishes it, or with another --data-dir", ErrHalf, dataDir, source)
}
