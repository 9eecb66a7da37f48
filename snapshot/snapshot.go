// Package snapshot keeps a cluster in one file: a consistent copy of its datastore, and the
// certificates and keys that make it this cluster. [Fork] makes the data directory of
// another cluster from such a file, or from a data directory.
//
// The file is a tar archive with mode 0600, since it has all the secrets of the cluster. It
// contains karve-snapshot.json, certs/…, and at the end mvcc.db, as a backup of the
// datastore is. The keys of --encryption-provider-config and other files of the user's are
// not in it.
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
	"strings"
	"time"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/atomicfile"
)

// The errors that callers can tell apart.
var (
	ErrNone     = errors.New("not a snapshot")
	ErrNewer    = errors.New("made by a newer release")
	ErrExists   = backup.ErrExists
	ErrOccupied = errors.New("there is a cluster already")
	ErrHalf     = errors.New("a fork was begun here and not finished")
)

// FileName is the snapshot in a data directory. `karve snapshot` writes it and `karve
// reset` reads it, unless another file is named.
const FileName = "snapshot"

const (
	format    = 1
	infoName  = "karve-snapshot.json"
	certsName = "certs"
	certsMost = 1 << 20 // bytes of a file in certs
)

// Info is what a snapshot says about itself.
type Info struct {
	Format   int       `json:"format"`
	Time     time.Time `json:"time"`
	Revision int64     `json:"revision"`
	Keys     int64     `json:"keys"`
}

// Source is a cluster of which a snapshot is taken.
type Source struct {
	// DataDir has its certificates.
	DataDir string
	// Backup writes its datastore to a file that does not exist yet. If it is nil, the
	// datastore is the database in StoreDir. While a server of DataDir uses it, Make asks
	// that server.
	Backup   func(ctx context.Context, to string) (*backup.Result, error)
	StoreDir string
}

func (s Source) backup(ctx context.Context, to string) (*backup.Result, error) {
	if s.Backup != nil {
		return s.Backup(ctx, to)
	}
	path := filepath.Join(s.StoreDir, datastore.EngineFile)
	made, err := backup.Write(ctx, sqlitefile.ClosedFile(path), to, backup.Options{})
	if !errors.Is(err, sqlitefile.ErrBusy) {
		return made, err
	}
	client := control.New(s.DataDir)
	defer client.Close()
	stream, asking := client.Get(ctx, control.BackupPath, path)
	if asking != nil {
		return nil, fmt.Errorf("%w: %w", err, asking)
	}
	defer stream.Close()
	return backup.Receive(ctx, stream, path, to, backup.Options{})
}

// Make writes a snapshot to a file. The file gets its name when all of it is on the disk.
func Make(ctx context.Context, from Source, to string, overwrite bool) (*Info, error) {
	to, err := filepath.Abs(to)
	if err != nil {
		return nil, fmt.Errorf("make snapshot: %w", err)
	}
	if _, err := os.Lstat(to); err == nil && !overwrite {
		return nil, fmt.Errorf("make snapshot: %w: %s", ErrExists, to)
	}
	var info *Info
	err = place(to, overwrite, func(w io.Writer, scratch string) (err error) {
		info, err = Write(ctx, from, scratch, w)
		return err
	})
	if err != nil {
		return nil, err
	}
	return info, nil
}

// Place makes a file that write fills. The file gets its name when all of it is on the
// disk. When Place returns, the name is on the disk, too.
func Place(to string, overwrite bool, write func(io.Writer) error) error {
	return place(to, overwrite, func(w io.Writer, _ string) error { return write(w) })
}

// place is Place with a directory for temporary files. If the process is killed, the next
// snapshot beside the file removes what it leaves.
func place(to string, overwrite bool, write func(w io.Writer, scratch string) error) error {
	err := placeIn(to, overwrite, write)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make snapshot: %w: %s", ErrExists, to)
	} else if err != nil {
		return fmt.Errorf("make snapshot %s: %w", to, err)
	}
	return nil
}

func placeIn(to string, overwrite bool, write func(w io.Writer, scratch string) error) error {
	temp, err := directory.NewTempDir(filepath.Dir(to))
	if err != nil {
		return err
	}
	defer temp.Remove()
	f, err := os.OpenFile(temp.File(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	err = write(f, temp.Dir())
	if err == nil {
		err = f.Sync()
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if overwrite {
		return atomicfile.Rename(temp.File(), to)
	}
	return atomicfile.RenameNew(temp.File(), to)
}

// Write writes a snapshot. scratch is a directory with space for a copy of the datastore.
func Write(ctx context.Context, from Source, scratch string, w io.Writer) (*Info, error) {
	temp, err := directory.NewTempDir(scratch)
	if err != nil {
		return nil, err
	}
	defer temp.Remove()
	database := temp.File()
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

// certificates returns the files of a directory, and those that links in it refer to.
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
			continue // a directory, or an unfinished file
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

// Snapshot is a snapshot that is being read.
type Snapshot struct {
	Info
	certs []file
	in    io.Reader // at the beginning of the database
	size  int64     // of the database
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

// Certificate returns the content of a file in certs, or nil if there is none.
func (s *Snapshot) Certificate(name string) []byte {
	for _, f := range s.certs {
		if f.name == name {
			return f.content
		}
	}
	return nil
}

// CopyDatabase writes the database to a file, which must not exist. It can be called once.
// Between files, it shares blocks where the file system can do that.
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

// Dump reads the database of the snapshot. scratch is a directory with space for a copy of it.
func (s *Snapshot) Dump(ctx context.Context, scratch string) (*datastore.Dump, error) {
	temp, err := directory.NewTempDir(scratch)
	if err != nil {
		return nil, err
	}
	defer temp.Remove()
	if err := s.CopyDatabase(temp.File()); err != nil {
		return nil, err
	}
	return datastore.ReadDump(ctx, temp.File())
}

// WithFile calls body with the snapshot in a file. Its errors name the file.
func WithFile(path string, body func(*Snapshot) error) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	return WithOpen(f, body)
}

// WithOpen is WithFile for an open file, from its beginning.
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
