package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/atomicfile"
)

// Beside ends the name of a user's file that Restore found changed and left alone.
const Beside = ".from-backup"

// Elsewhere is the directory in a data directory for the user's files that may not be made where they were.
const Elsewhere = "from-backup"

// Restore makes the cluster of a snapshot again, in a directory without one: with the same certificates and
// keys, so that nodes, kubeconfigs and tokens remain valid. Like [Fork], it continues at a revision far above that of the
// snapshot, can be stopped at any point, and finishes when it is called again. It replaces no file.
//
// It calls files with the snapshot when it has found that the directory has no cluster and the snapshot is whole, and has marked the
// directory as unfinished. files may place the user's files ([Snapshot.PlaceFiles]).
func Restore(ctx context.Context, source string, to Target, files func(*Snapshot) error) (*Info, error) {
	to.whole = true
	done, err := restore(ctx, source, to, files)
	if err != nil {
		return nil, fmt.Errorf("restore %s: %w", source, err)
	}
	return done, nil
}

func restore(ctx context.Context, source string, to Target, files func(*Snapshot) error) (*Info, error) {
	_, begun, err := check(source, to)
	if err != nil {
		return nil, err
	}
	if begun == nil { // with a damaged one, nothing is begun that could never be finished
		err := WithSource(source, to.Open, func(s *Snapshot) error {
			_, err := s.Verify(ctx, to.DataDir)
			return errors.Join(err, s.checkManifests(to.DataDir))
		})
		if err != nil {
			return nil, err
		}
		if _, err := begin(source, to); err != nil {
			return nil, err
		}
	}
	// The user's files come behind the mark, because one of them is the configuration with which a server could start, and
	// before the end of the restore, because a directory that has a cluster is refused.
	if err := WithSource(source, to.Open, files); err != nil {
		if begun == nil {
			err = errors.Join(err, removeMark(to.DataDir))
		}
		return nil, err
	}
	done, err := forkInto(ctx, source, to)
	if err != nil {
		return nil, err
	}
	return &done.Info, nil
}

// PlaceFiles makes the user's files that do not exist. One that exists with other contents stays, and the
// snapshot's is made beside it, with a name that ends in Beside. placeFor says where a file may be made. It returns the paths
// of both kinds.
func (s *Snapshot) PlaceFiles(placeFor func(path string) string) (placed, kept []string, err error) {
	contents := s.FileContents()
	for i, f := range s.Files {
		path := placeFor(f.Path)
		content := contents[i]
		now, err := os.ReadFile(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			if err = openDir(filepath.Dir(path)); err == nil {
				err = atomicfile.Write(path, content, f.Mode&0o755)
			}
			placed = append(placed, path)
		case err == nil && !bytes.Equal(now, content):
			err = atomicfile.Write(path+Beside, content, 0o600)
			kept = append(kept, path)
		}
		if err != nil {
			return nil, nil, err
		}
	}
	return placed, kept, nil
}

// openDir makes a directory, if it does not exist, that the service's user may enter, too: the files in it have their own modes.
func openDir(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return errors.Join(atomicfile.MakeDir(dir), os.Chmod(dir, 0o755))
}

// FileContents returns the contents of the user's files, in the order of Files.
func (s *Snapshot) FileContents() (all [][]byte) {
	for i := range s.Files {
		all = append(all, s.content(fmt.Sprintf("%s/%d", filesName, i)))
	}
	return all
}

// Verify checks everything in a snapshot: the checksums, and each row of the database. scratch is a directory
// with space for a copy of the database, which never has a name there: the snapshot may be a sealed one. A snapshot that is damaged is an error.
func (s *Snapshot) Verify(ctx context.Context, scratch string) (*backup.Verification, error) {
	database, err := sqlitefile.NewUnnamed(scratch, s.size, s.fill)
	if err != nil {
		return nil, err
	}
	defer database.Close()
	return verify(ctx, database, s.Revision)
}

func verify(ctx context.Context, database sqlitefile.Source, revision int64) (*backup.Verification, error) {
	done, err := backup.Verify(ctx, database, nil)
	if err != nil {
		return nil, err
	}
	if err := done.Err(); err != nil {
		return nil, err
	}
	if done.Revision != revision {
		return nil, fmt.Errorf("%w: it says revision %d, and its database has %d", ErrNone, revision, done.Revision)
	}
	return done, nil
}
