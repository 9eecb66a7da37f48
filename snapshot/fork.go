package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
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
	// origin records what the fork was made of.
	origin = "fork-of"
	// clusterKey is the key that a cluster shares with its forks: the service account key
	// (certs.ServiceAccount).
	clusterKey = "service-account.key"
)

// Origin says what a data directory was made of.
type Origin struct {
	Source string `json:"source"` // absolute path; unknown for forks of earlier releases
	Info
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
	_, err := check(source, dataDir, storeDir)
	return err
}

// check returns what dataDir was made of, if it is already a fork of source.
func check(source, dataDir, storeDir string) (already *Origin, err error) {
	if err := used(dataDir, storeDir); err != nil {
		return nil, err
	}
	half := marked(dataDir)
	taken := ""
	for _, path := range occupied(dataDir, storeDir) {
		if _, err := os.Lstat(path); err == nil && !half {
			taken = path
			break
		}
	}
	if taken != "" {
		return alreadyOf(source, dataDir, taken)
	}
	info, err := os.Stat(source)
	if err != nil {
		return nil, err
	}
	if same(source, filepath.Join(dataDir, FileName)) {
		return nil, fmt.Errorf("%s is a part of the data directory, which the fork would replace: copy it elsewhere", source)
	}
	if !info.IsDir() {
		return nil, WithFile(source, func(*Snapshot) error { return nil })
	}
	if same(source, dataDir) {
		return nil, fmt.Errorf("%s is the data directory itself", source)
	}
	if _, err := os.Stat(filepath.Join(source, datastore.EngineFile)); err != nil {
		return nil, fmt.Errorf("%w (a server that keeps its state elsewhere, or in memory, is forked by a file: karve snapshot --data-dir %s FILE)", err, source)
	}
	return nil, nil
}

// alreadyOf returns what the cluster in dataDir was made of, if that is source. A service
// starts with the same options again and again.
//
// The snapshot counts, not its name: a file may be moved, and another one may take its
// place. If that is of the same cluster, it counts as a newer snapshot, as with backups
// under one name. A source that is gone is recognised by its name.
func alreadyOf(source, dataDir, taken string) (*Origin, error) {
	if same(source, dataDir) {
		return nil, fmt.Errorf("%s is the data directory itself", source)
	}
	of := OriginOf(dataDir)
	if of == nil {
		return nil, fmt.Errorf("%w: %s, and it is no fork; a fork needs a data directory of its own", ErrOccupied, taken)
	}
	other := fmt.Errorf("%w: %s is a fork of %s; a fork of %s needs a data directory of its own (karve reset FILE goes back to another snapshot of the same cluster)",
		ErrOccupied, dataDir, of, source)
	path, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	named := of.Source == path
	info, err := os.Stat(source)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if named {
			return of, nil
		}
		return nil, err
	case err != nil:
		return nil, err
	case info.IsDir():
		key, err := os.ReadFile(filepath.Join(source, certsName, clusterKey))
		if err == nil && (named || of.Source == "") && sameCluster(dataDir, key) {
			return of, nil
		}
		return nil, other
	}
	err = WithFile(source, func(s *Snapshot) error {
		switch {
		case s.Info.equal(of.Info):
		case named && sameCluster(dataDir, s.Certificate(clusterKey)):
		default:
			return other
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return of, nil
}

func (i Info) equal(j Info) bool {
	return i.Time.Equal(j.Time) && i.Revision == j.Revision && i.Keys == j.Keys
}

func sameCluster(dataDir string, key []byte) bool {
	own, err := os.ReadFile(filepath.Join(dataDir, certsName, clusterKey))
	return err == nil && len(key) > 0 && string(own) == string(key)
}

// String names the source, and the time and revision of the snapshot.
func (o *Origin) String() string {
	source := o.Source
	if source == "" {
		source = "a snapshot"
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

func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
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

func marked(dataDir string) bool {
	_, err := os.Lstat(filepath.Join(dataDir, unfinished))
	return err == nil
}

// used returns [ErrUsed] for a directory that is marked as unfinished, although a server
// has written to its datastore since. Servers do not start before the removal of the mark
// is durable, so the mark has come back: the disk lost what it had confirmed, or the
// release that made the fork did not wait for the disk. Making the fork again would destroy
// the cluster.
func used(dataDir, storeDir string) error {
	if storeDir == "" || !marked(dataDir) {
		return nil
	}
	path := filepath.Join(storeDir, datastore.EngineFile)
	if _, err := os.Lstat(path); err != nil {
		return nil
	}
	log, err := os.Stat(path + "-wal")
	written := err == nil && log.Size() > 0 // a fork has no WAL
	if !written {
		look, err := sqlitefile.ReadInfo(path)
		of := OriginOf(dataDir)
		written = err == nil && (of == nil || look.Revision > of.Revision)
	}
	if !written {
		return nil
	}
	return fmt.Errorf("%w: %s has been written to since. The mark has come back, perhaps with a power cut. Remove the file %s, and nothing else, to start the cluster",
		ErrUsed, path, filepath.Join(dataDir, unfinished))
}

// Unfinished returns [ErrHalf] for a data directory with an unfinished fork, which must not
// be started. It returns [ErrUsed] if the mark cannot be right.
func Unfinished(dataDir, storeDir string) error {
	if !marked(dataDir) {
		return nil
	}
	if err := used(dataDir, storeDir); err != nil {
		return err
	}
	source := ""
	if text, err := os.ReadFile(filepath.Join(dataDir, unfinished)); err == nil {
		source = " " + strings.TrimSpace(string(text))
	}
	return fmt.Errorf("%w: %s: start with --fork-from%s, which makes it anew, or with another --data-dir", ErrHalf, dataDir, source)
}

// Fork makes a data directory from a snapshot in a file, or from the data directory of
// another cluster, which may run and is only read. It keeps the snapshot as FileName. The
// caller holds the locks of both directories. storeDir is empty if the datastore is to be
// in memory. A directory that is already a fork of source stays unchanged.
//
// If Fork is stopped at any point, also by a power cut, the directory is marked
// ([Unfinished]), and the next call makes the fork. When Fork returns nil, the fork and the
// removal of the mark are durable.
func Fork(ctx context.Context, source, dataDir, storeDir string) (*Forked, error) {
	out, err := forkInto(ctx, source, dataDir, storeDir)
	if err != nil {
		return nil, fmt.Errorf("fork %s: %w", source, err)
	}
	return out, nil
}

func forkInto(ctx context.Context, source, dataDir, storeDir string) (*Forked, error) {
	already, err := check(source, dataDir, storeDir)
	if err != nil {
		return nil, err
	}
	if already != nil {
		return &Forked{*already, true}, nil
	}
	path, err := filepath.Abs(source)
	if err != nil {
		return nil, err
	}
	// The mark is durable before anything that it marks.
	if !marked(dataDir) {
		if err := place(dataDir, unfinished, []byte(path+"\n")); err != nil {
			return nil, err
		}
	}
	for _, path := range occupied(dataDir, storeDir) {
		if err := os.RemoveAll(path); err != nil {
			return nil, err
		}
	}
	info, err := makeFork(ctx, source, dataDir, storeDir)
	if err != nil {
		return nil, err
	}
	of := Origin{Source: path, Info: *info}
	text, err := json.Marshal(of)
	if err != nil {
		return nil, err
	}
	if err := place(dataDir, origin, append(text, '\n')); err != nil {
		return nil, err
	}
	// Everything is durable before the mark is removed, and the removal is durable before
	// the caller starts anything. If the mark came back, the cluster would be made again.
	if err := syncDirs(filepath.Join(dataDir, certsName), storeDir, dataDir); err != nil {
		return nil, err
	}
	if err := os.Remove(filepath.Join(dataDir, unfinished)); err != nil {
		return nil, err
	}
	return &Forked{of, false}, syncDirs(dataDir)
}

// place writes a small file, and makes it and its name durable.
func place(dir, name string, text []byte) error {
	return Place(filepath.Join(dir, name), true, func(w io.Writer) error {
		_, err := w.Write(text)
		return err
	})
}

func makeFork(ctx context.Context, source, dataDir, storeDir string) (*Info, error) {
	own := filepath.Join(dataDir, FileName)
	from, err := os.Stat(source)
	if err != nil {
		return nil, err
	}
	if from.IsDir() {
		_, err = Make(ctx, Source{DataDir: source, StoreDir: source}, own, false)
	} else {
		err = copyFile(source, own)
	}
	if err != nil {
		return nil, err
	}
	var info *Info
	err = WithFile(own, func(s *Snapshot) error {
		info = &s.Info
		dir := filepath.Join(dataDir, certsName)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := writeAll(dir, s.certs); err != nil {
			return err
		}
		if storeDir == "" {
			return nil
		}
		return s.CopyDatabase(filepath.Join(storeDir, datastore.EngineFile))
	})
	return info, err
}

// writeAll syncs the files at the same time: the file system's journal then commits once or
// twice, and not once for each.
func writeAll(dir string, files []file) error {
	errs := make([]error, len(files))
	var writing sync.WaitGroup
	for i, f := range files {
		writing.Go(func() {
			w, err := os.OpenFile(filepath.Join(dir, f.name), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
			if err != nil {
				errs[i] = err
				return
			}
			_, err = w.Write(f.content)
			errs[i] = errors.Join(err, w.Sync(), w.Close())
		})
	}
	writing.Wait()
	return errors.Join(errs...)
}

func copyFile(from, to string) error {
	r, err := os.Open(from)
	if err != nil {
		return err
	}
	defer r.Close()
	return Place(to, false, func(w io.Writer) error { // shares blocks where the file system can
		_, err := io.Copy(w, r)
		return err
	})
}

// syncDirs makes the names in directories durable.
func syncDirs(dirs ...string) error {
	for _, dir := range dirs {
		if dir == "" {
			continue
		}
		if err := atomicfile.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}
