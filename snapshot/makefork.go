package snapshot

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/atomicfile"
)

// Target is where a fork is made. The caller holds the locks of both directories.
type Target struct {
	DataDir  string
	StoreDir string // of the database; empty if the datastore is to be in memory
	// Drop returns true for keys that the fork does not get: what the servers of the original
	// have written about themselves.
	Drop func(key string) bool
	// Open opens the source, if it is not a file that can be read as it is.
	Open func() (io.ReadCloser, error)

	whole bool // see [Restore]
}

// Fork makes a data directory from a snapshot in a file, or from the data directory of
// another cluster, which may run and is only read. It keeps the snapshot as FileName. The
// revision of the fork is far above that of the snapshot ([backup.Above]). A
// directory that is already a fork of source stays unchanged.
//
// If Fork is stopped at any point, also by a power cut, the directory is marked
// ([Unfinished]), and the next call finishes the fork. When Fork returns nil, the fork and
// the removal of the mark are durable. Fork removes no file but its mark, and replaces none.
func Fork(ctx context.Context, source string, to Target) (*Forked, error) {
	out, err := forkInto(ctx, source, to)
	if err != nil {
		return nil, fmt.Errorf("fork %s: %w", source, err)
	}
	return out, nil
}

func forkInto(ctx context.Context, source string, to Target) (*Forked, error) {
	already, begun, err := check(source, to)
	if err != nil {
		return nil, err
	}
	if already != nil {
		return &Forked{*already, true}, removeMark(to.DataDir)
	}
	if begun == nil {
		if begun, err = begin(source, to); err != nil {
			return nil, err
		}
	}
	info, err := makeFork(ctx, begun, to)
	if err != nil {
		return nil, err
	}
	// Everything else is durable before the last file, that is before the mark is removed, and
	// the removal before the caller starts anything.
	of := Origin{Source: begun.Source, Info: *info}
	if to.whole { // it is no fork, and has no use for a copy of its beginning
		err = errors.Join(os.Remove(filepath.Join(to.DataDir, FileName)), atomicfile.SyncDir(to.DataDir))
	} else {
		err = write(to.DataDir, origin, of)
	}
	if err != nil {
		return nil, err
	}
	return &Forked{of, false}, removeMark(to.DataDir)
}

// begin marks a directory. The mark is durable before anything that it marks.
func begin(source string, to Target) (*mark, error) {
	path, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	begun := &mark{Source: path, ID: 1 + rand.Int64N(math.MaxInt64), Restore: to.whole}
	return begun, write(to.DataDir, unfinished, begun)
}

func removeMark(dataDir string) error {
	err := os.Remove(filepath.Join(dataDir, unfinished))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return atomicfile.SyncDir(dataDir)
}

// write writes a small file, and makes it and its name durable.
func write(dir, name string, content any) error {
	text, err := json.Marshal(content)
	if err != nil {
		return err
	}
	return atomicfile.Write(filepath.Join(dir, name), append(text, '\n'), 0o600)
}

// makeFork makes what is missing of a fork. Each file gets its name when it is complete and
// durable. All others are made of the first one, the snapshot.
func makeFork(ctx context.Context, begun *mark, to Target) (*Info, error) {
	own := filepath.Join(to.DataDir, FileName)
	if _, err := os.Lstat(own); errors.Is(err, fs.ErrNotExist) {
		if err := takeSnapshot(ctx, begun.Source, own, to.Open); err != nil {
			return nil, err
		}
	}
	var info *Info
	err := WithFile(own, func(s *Snapshot) error {
		info = &s.Info
		err := writeSmall(to.DataDir, s.filesIn(certsName))
		if err == nil && to.whole {
			err = writeSmall(to.DataDir, s.filesIn(sshName))
		}
		if err == nil && to.whole {
			err = writeSmall(s.manifestsAbove(to.DataDir), s.filesIn(manifestsName))
		}
		if err != nil {
			return err
		}
		return s.makeDatabase(ctx, begun, to)
	})
	return info, err
}

// takeSnapshot copies a backup in a file, or makes one of the cluster in a data directory.
func takeSnapshot(ctx context.Context, source, to string, open func() (io.ReadCloser, error)) error {
	if open == nil {
		open = func() (io.ReadCloser, error) { return os.Open(source) }
		from, err := os.Stat(source)
		if err != nil {
			return err
		}
		if from.IsDir() {
			return Place(to, false, func(w io.Writer, scratch string) error {
				asked, err := FromServer(ctx, source, "", w)
				if err == nil && !asked {
					_, err = Write(ctx, Source{DataDir: source, StoreDir: source}, scratch, w)
				}
				return err
			})
		}
	}
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	return Place(to, false, func(w io.Writer, _ string) error { // shares blocks where the file system can
		_, err := io.Copy(w, r)
		return err
	})
}

// writeSmall writes the files that are missing below a directory. It returns [ErrOccupied] for one with another content.
func writeSmall(above string, files []file) error {
	missing, err := missing(above, files)
	if err != nil {
		return err
	}
	for _, f := range missing {
		if err := atomicfile.MakeDir(filepath.Dir(f.Path)); err != nil {
			return err
		}
	}
	return atomicfile.Writer{}.Write(missing...)
}

// missing returns the files that are not below a directory. It returns [ErrOccupied] if one is there with another content.
func missing(above string, files []file) (all []atomicfile.File, err error) {
	for _, f := range files {
		path := filepath.Join(above, filepath.FromSlash(f.name))
		content, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			all = append(all, atomicfile.File{Path: path, Data: f.content, Mode: f.mode & 0o755})
		case err != nil:
			return nil, err
		case !bytes.Equal(content, f.content):
			return nil, fmt.Errorf("%w: %s, which is not that of the backup: move it away, or use a data directory of its own", ErrOccupied, path)
		}
	}
	return all, nil
}

// makeDatabase makes the database of a fork, unless there is one: [check] has found that
// the same fork has made that.
func (s *Snapshot) makeDatabase(ctx context.Context, begun *mark, to Target) error {
	path := filepath.Join(to.StoreDir, datastore.EngineFile)
	if _, err := os.Lstat(path); to.StoreDir == "" || err == nil {
		return nil
	}
	return directory.Place(path, false, func(temp *directory.TempDir) error {
		if err := s.CopyDatabase(temp.File()); err != nil {
			return err
		}
		return backup.Continue(ctx, temp.File(), to.Drop, sqlitefile.Metas{begun.meta(): begun.ID})
	})
}

// Contents returns what a datastore in memory of a fork begins with. Each start has higher
// revisions than the one before.
func Contents(ctx context.Context, at Target) (*datastore.Dump, error) {
	of := OriginOf(at.DataDir)
	if of == nil {
		return nil, fmt.Errorf("%s is no fork", at.DataDir)
	}
	of.Starts++
	if err := write(at.DataDir, origin, of); err != nil {
		return nil, err
	}
	var contents *datastore.Dump
	err := WithFile(filepath.Join(at.DataDir, FileName), func(s *Snapshot) (err error) {
		if contents, err = s.Dump(ctx, at.DataDir); err != nil {
			return err
		}
		return contents.Continue(at.Drop, of.Starts-1)
	})
	return contents, err
}
