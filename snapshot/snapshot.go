// Package snapshot keeps a cluster in one file: a consistent copy of its datastore,
// and the certificates and keys that make it this cluster. Of such a file, or of a
// data directory, [Fork] makes the data directory of another one.
//
// The file is a tar archive, mode 0600, since all the secrets of the cluster are in
// it: karve-snapshot.json, certs/…, and at the end mvcc.db, as a backup of the
// datastore is. Keys of --encryption-provider-config and other files of the user's
// are not in it.
package snapshot

import (
	"archive/tar"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/karve-k8s/karve/datastore"
)

// The errors that callers can tell apart.
var (
	ErrNone     = errors.New("not a snapshot")
	ErrNewer    = errors.New("made by a newer release")
	ErrExists   = datastore.ErrExists
	ErrOccupied = errors.New("there is a cluster already")
	ErrHalf     = errors.New("a fork was begun here and not finished")
)

// FileName is the snapshot in a data directory: where `karve snapshot` writes and
// what `karve reset` goes back to if no other file is named.
const FileName = "snapshot"

const (
	format    = 1
	infoName  = "karve-snapshot.json"
	certsName = "certs"
	certsMost = 1 << 20 // bytes of a file in certs
)

// Info is what a snapshot tells of itself.
type Info struct {
	Format   int       `json:"format"`
	Time     time.Time `json:"time"`
	Revision int64     `json:"revision"`
	Keys     int64     `json:"keys"`
}

// Source is a cluster of which a snapshot is made.
type Source struct {
	// DataDir is where its certificates are.
	DataDir string
	// Backup writes its datastore to a file that is not there yet. Nil is the
	// database in StoreDir, which a server may be using.
	Backup   func(ctx context.Context, to string) (*datastore.Copy, error)
	StoreDir string
}

func (s Source) backup(ctx context.Context, to string) (*datastore.Copy, error) {
	if s.Backup != nil {
		return s.Backup(ctx, to)
	}
	return datastore.BackupFile(ctx, filepath.Join(s.StoreDir, datastore.EngineFile), to, datastore.BackupOptions{})
}

// Make writes a snapshot to a file, which gets its name when all of it is on the disk.
func Make(ctx context.Context, from Source, to string, overwrite bool) (*Info, error) {
	to, err := filepath.Abs(to)
	if err != nil {
		return nil, fmt.Errorf("make snapshot: %w", err)
	}
	if _, err := os.Lstat(to); err == nil && !overwrite {
		return nil, fmt.Errorf("make snapshot: %w: %s", ErrExists, to)
	}
	var info *Info
	err = Place(to, overwrite, func(w io.Writer) (err error) {
		info, err = Write(ctx, from, filepath.Dir(to), w)
		return err
	})
	if err != nil {
		return nil, err
	}
	return info, nil
}

// Place gives the file that write writes its name, when all of it is on the disk.
func Place(to string, overwrite bool, write func(io.Writer) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(to), "."+filepath.Base(to)+".*.partial") // mode 0600
	if err != nil {
		return fmt.Errorf("make snapshot: %w", err)
	}
	defer os.Remove(f.Name())
	err = write(f)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return fmt.Errorf("make snapshot %s: %w", to, err)
	}
	if overwrite {
		return os.Rename(f.Name(), to)
	}
	// A link never replaces; where there are none, the check has to do.
	if err := os.Link(f.Name(), to); err == nil {
		return nil
	} else if _, there := os.Lstat(to); there == nil {
		return fmt.Errorf("make snapshot: %w: %s", ErrExists, to)
	}
	return os.Rename(f.Name(), to)
}

// Write writes a snapshot; scratch is a directory that has room for a copy of the
// datastore.
func Write(ctx context.Context, from Source, scratch string, w io.Writer) (*Info, error) {
	dir, err := os.MkdirTemp(scratch, ".snapshot-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	database := filepath.Join(dir, datastore.EngineFile)
	made, err := from.backup(ctx, database)
	if err != nil {
		return nil, err
	}
	info := &Info{Format: format, Time: time.Now().UTC().Truncate(time.Second), Revision: made.Revision, Keys: made.Keys}
	text, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(w)
	if err := add(archive, infoName, int64(len(text)), info.Time, strings.NewReader(string(text))); err != nil {
		return nil, err
	}
	files, err := certificates(filepath.Join(from.DataDir, certsName))
	if err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := add(archive, certsName+"/"+f.name, int64(len(f.content)), info.Time, strings.NewReader(string(f.content))); err != nil {
			return nil, err
		}
	}
	f, err := os.Open(database)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, err
	}
	if err := add(archive, datastore.EngineFile, size, info.Time, f); err != nil {
		return nil, err
	}
	return info, archive.Close()
}

func add(archive *tar.Writer, name string, size int64, at time.Time, content io.Reader) error {
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600, ModTime: at}); err != nil {
		return err
	}
	_, err := io.Copy(archive, content)
	return err
}

type file struct {
	name    string
	content []byte
}

// certificates are the files of a directory, those that links mean as well.
func certificates(dir string) ([]file, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: no server has been started with this --data-dir", err)
	} else if err != nil {
		return nil, err
	}
	var all []file
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() || strings.HasPrefix(e.Name(), ".") {
			continue // a directory, or a file that is being made
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if len(content) > certsMost {
			return nil, fmt.Errorf("%s has %d bytes: no certificate or key is so large", path, len(content))
		}
		all = append(all, file{e.Name(), content})
	}
	return all, nil
}

// Snapshot is one that is being read.
type Snapshot struct {
	Info
	certs []file
	in    io.Reader // is at the beginning of the database
	size  int64     // of that
}

// Read reads a snapshot up to its database.
func Read(in io.Reader) (*Snapshot, error) {
	s := &Snapshot{in: in}
	archive := tar.NewReader(in)
	for first := true; ; first = false {
		h, err := archive.Next()
		switch {
		case err != nil && first:
			return nil, ErrNone
		case err != nil:
			return nil, fmt.Errorf("%w: it ends before its database", ErrNone)
		case first != (h.Name == infoName):
			return nil, ErrNone
		}
		dir, name, found := strings.Cut(h.Name, "/")
		switch {
		case h.Name == datastore.EngineFile:
			s.size = h.Size
			return s, nil
		case h.Size > certsMost || !first && (dir != certsName || !found || !filepath.IsLocal(name) || strings.ContainsAny(name, `/\`)):
			return nil, fmt.Errorf("%w: %q does not belong there", ErrNone, h.Name)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return nil, fmt.Errorf("%w: it ends within %s", ErrNone, h.Name)
		}
		if !first {
			s.certs = append(s.certs, file{name, content})
			continue
		}
		if err := json.Unmarshal(content, &s.Info); err != nil {
			return nil, fmt.Errorf("%w: %s: %w", ErrNone, infoName, err)
		}
		if s.Format > format {
			return nil, fmt.Errorf("snapshot of format %d: %w", s.Format, ErrNewer)
		}
	}
}

// Certificate is the content of a file in certs, nil if there is none.
func (s *Snapshot) Certificate(name string) []byte {
	for _, f := range s.certs {
		if f.name == name {
			return f.content
		}
	}
	return nil
}

// CopyDatabase writes the database to a file, which must not be there. It can be
// called once. Between files, blocks are shared where the file system can do that.
func (s *Snapshot) CopyDatabase(to string) error {
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.CopyN(f, s.in, s.size)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: it ends within its database", ErrNone)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// Contents reads what is in the database; scratch is a directory that has room for it.
func (s *Snapshot) Contents(ctx context.Context, scratch string) (*datastore.Contents, error) {
	dir, err := os.MkdirTemp(scratch, ".snapshot-*")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	database := filepath.Join(dir, datastore.EngineFile)
	if err := s.CopyDatabase(database); err != nil {
		return nil, err
	}
	return datastore.ReadContents(ctx, database)
}

// WithFile calls body with a snapshot in a file; its errors name that.
func WithFile(path string, body func(*Snapshot) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return WithOpen(f, body)
}

// WithOpen is WithFile for a file that is open, from its beginning.
func WithOpen(f *os.File, body func(*Snapshot) error) error {
	_, err := f.Seek(0, io.SeekStart)
	var s *Snapshot
	if err == nil {
		s, err = Read(f)
	}
	if err == nil {
		err = body(s)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", f.Name(), err)
	}
	return nil
}

// unfinished is in a data directory while a fork is being made there.
const unfinished = "fork-unfinished"

// Check tells whether source can be forked into a data directory and the directory of
// its datastore, empty where that is in memory, as far as a glance shows.
func Check(source, dataDir, storeDir string) error {
	info, err := os.Stat(source)
	if err != nil {
		return err
	}
	if info.IsDir() {
		if _, err := os.Stat(filepath.Join(source, datastore.EngineFile)); err != nil {
			return fmt.Errorf("%w (a server that keeps its state elsewhere, or in memory, is forked by a file: karve snapshot --data-dir %s FILE)", err, source)
		}
		if same(source, dataDir) {
			return fmt.Errorf("%s is the data directory itself", source)
		}
	} else if err := WithFile(source, func(*Snapshot) error { return nil }); err != nil {
		return err
	}
	if Unfinished(dataDir) == nil {
		for _, path := range occupied(dataDir, storeDir) {
			if _, err := os.Lstat(path); err == nil {
				return fmt.Errorf("%w: %s; a fork needs a data directory of its own", ErrOccupied, path)
			}
		}
	}
	return nil
}

func same(a, b string) bool {
	x, err := os.Stat(a)
	if err != nil {
		return false
	}
	y, err := os.Stat(b)
	return err == nil && os.SameFile(x, y)
}

// occupied are the names that a cluster has and a fork makes.
func occupied(dataDir, storeDir string) []string {
	names := []string{filepath.Join(dataDir, certsName), filepath.Join(dataDir, FileName)}
	dirs := []string{dataDir}
	if storeDir != "" && filepath.Clean(storeDir) != filepath.Clean(dataDir) {
		dirs = append(dirs, storeDir)
	}
	for _, dir := range dirs {
		for _, name := range []string{datastore.EngineFile, datastore.EngineFile + "-wal", datastore.FileName} {
			names = append(names, filepath.Join(dir, name))
		}
	}
	return names
}

// Unfinished is [ErrHalf] for a data directory in which a fork was begun and not
// finished: what is there must not be started.
func Unfinished(dataDir string) error {
	if _, err := os.Lstat(filepath.Join(dataDir, unfinished)); err != nil {
		return nil
	}
	return fmt.Errorf("%w: give --fork-from again, or remove %s", ErrHalf, dataDir)
}

// Fork makes what a cluster is started from of a snapshot in a file, or of the data
// directory of another cluster, running or not, which is only read. The snapshot is
// kept as FileName. The caller holds the locks of both directories; storeDir is empty
// where the datastore is to be in memory.
//
// A stop at any point leaves a directory that says so ([Unfinished]), and of which
// the next call makes the fork.
func Fork(ctx context.Context, source, dataDir, storeDir string) (*Info, error) {
	if err := Check(source, dataDir, storeDir); err != nil {
		return nil, fmt.Errorf("fork %s: %w", source, err)
	}
	mark := filepath.Join(dataDir, unfinished)
	if Unfinished(dataDir) != nil {
		for _, path := range occupied(dataDir, storeDir) {
			if err := os.RemoveAll(path); err != nil {
				return nil, fmt.Errorf("fork %s: %w", source, err)
			}
		}
	} else if err := os.WriteFile(mark, []byte(source+"\n"), 0o600); err != nil {
		return nil, fmt.Errorf("fork %s: %w", source, err)
	}
	info, err := fork(ctx, source, dataDir, storeDir)
	if err == nil {
		err = syncDirs(dataDir, filepath.Join(dataDir, certsName), storeDir)
	}
	if err == nil {
		err = os.Remove(mark)
	}
	if err != nil {
		return nil, fmt.Errorf("fork %s: %w", source, err)
	}
	return info, nil
}

func fork(ctx context.Context, source, dataDir, storeDir string) (*Info, error) {
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

// writeAll syncs the files at the same time: the file system's journal then commits
// once or twice, not once for each.
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
	return Place(to, false, func(w io.Writer) error { // shares blocks where it can
		_, err := io.Copy(w, r)
		return err
	})
}

// syncDirs makes the names in directories durable.
func syncDirs(dirs ...string) error {
	for _, dir := range slices.Compact(dirs) {
		if dir == "" {
			continue
		}
		if err := datastore.SyncDir(dir); err != nil {
			return err
		}
	}
	return nil
}
