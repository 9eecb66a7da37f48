// Package snapshot keeps a cluster in one file: a consistent copy of its datastore, and the
// certificates, keys and files that make it this cluster. [Fork] makes the data directory of
// another cluster from such a file, or from a data directory. [Restore] makes the cluster itself again.
//
// The file is a tar archive with mode 0600, since it has all the secrets of the cluster. It
// contains karve-snapshot.json, certs/…, ssh/…, manifests/…, the user's files as files/N, and at the end mvcc.db, as a
// backup of the datastore is.
package snapshot

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/version"
)

// The errors that callers can tell apart.
var (
	ErrNone     = errors.New("not a backup or snapshot of a cluster")
	ErrNewer    = errors.New("made by a newer release")
	ErrExists   = backup.ErrExists
	ErrOccupied = errors.New("there is a cluster already")
	ErrHalf     = errors.New("a fork was begun here and not finished")
)

// FileName is the snapshot in a data directory. `karve snapshot` writes it and `karve
// reset` reads it, unless another file is named.
const FileName = "snapshot"

const (
	format    = 2 // 1 had neither ssh/, manifests/ nor files/, and no sums
	infoName  = "karve-snapshot.json"
	certsName = "certs"
	sshName   = "ssh"
	filesName = "files"
	fileMost  = 1 << 20 // bytes of a file that is not the database
)

// Info is what a snapshot says about itself.
type Info struct {
	Format   int       `json:"format"`
	Time     time.Time `json:"time"`
	Revision int64     `json:"revision"`
	Keys     int64     `json:"keys"`
	// Fork is the number of the fork that the cluster is; see [ForkOf].
	Fork int64 `json:"fork,omitempty"`
	// Version is that of the Karve that took it.
	Version string `json:"version,omitempty"`
	// Files are the user's files in it. The first one is files/0.
	Files []UserFile `json:"files,omitempty"`
	// ManifestsDir is the directory of the manifests in it, if that is not in the data directory.
	ManifestsDir string `json:"manifestsDir,omitempty"`
	// Sums has the SHA-256 of every other entry, in hexadecimal.
	Sums map[string]string `json:"sums,omitempty"`
}

// UserFile is a file that is not in the data directory.
type UserFile struct {
	Path string      `json:"path"` // absolute
	Mode fs.FileMode `json:"mode"`
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
	// Files are paths of files that belong to the cluster, but are not in DataDir. One that does not exist is
	// left out.
	Files []string
	// ManifestsDir is the directory of manifests; empty means the one in DataDir. It may be missing.
	ManifestsDir string
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

// Place makes a file that write fills. scratch is a directory for temporary files. The file gets its name when
// all of it is on the disk. When Place returns, the name is on the disk, too. If the process is killed, the next
// snapshot beside the file removes what it leaves.
func Place(to string, overwrite bool, write func(w io.Writer, scratch string) error) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return fmt.Errorf("make snapshot: %w", err)
	}
	if _, err := os.Lstat(to); err == nil && !overwrite {
		return fmt.Errorf("make snapshot: %w: %s", ErrExists, to)
	}
	err = directory.Place(to, overwrite, func(temp *directory.TempDir) error {
		f, err := os.OpenFile(temp.File(), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		err = write(f, temp.Dir())
		if err == nil {
			err = f.Sync()
		}
		return errors.Join(err, f.Close())
	})
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("make snapshot: %w: %s", ErrExists, to)
	} else if err != nil {
		return fmt.Errorf("make snapshot %s: %w", to, err)
	}
	return nil
}

// Write writes a snapshot, whose database it verifies. scratch is a directory with space for a copy of the datastore.
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
	if _, err := verify(ctx, sqlitefile.ClosedFile(database), made.Revision); err != nil {
		return nil, err
	}
	info := &Info{Format: format, Time: time.Now().UTC().Truncate(time.Second), Revision: made.Revision, Keys: made.Keys, Version: version.Full(), Sums: map[string]string{}}
	if info.Fork, err = ForkOf(ctx, sqlitefile.ClosedFile(database)); err != nil {
		return nil, err
	}
	files, err := from.small(info)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(database)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info.Sums[datastore.EngineFile], err = sum(f); err != nil {
		return nil, err
	}
	text, err := json.Marshal(info)
	if err != nil {
		return nil, err
	}
	archive := tar.NewWriter(w)
	if err := add(archive, infoName, 0o600, int64(len(text)), info.Time, bytes.NewReader(text)); err != nil {
		return nil, err
	}
	for _, f := range files {
		if err := add(archive, f.name, f.mode, int64(len(f.content)), info.Time, bytes.NewReader(f.content)); err != nil {
			return nil, err
		}
	}
	size, err := f.Seek(0, io.SeekEnd)
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, err
	}
	if err := add(archive, datastore.EngineFile, 0o600, size, info.Time, f); err != nil {
		return nil, err
	}
	return info, archive.Close()
}

func add(archive *tar.Writer, name string, mode fs.FileMode, size int64, at time.Time, content io.Reader) error {
	if err := archive.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: int64(mode), ModTime: at}); err != nil {
		return err
	}
	_, err := io.Copy(archive, content)
	return err
}

// sum returns the SHA-256 of a reader's contents.
func sum(r io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), err
}

type file struct {
	name    string // in the archive
	content []byte
	mode    fs.FileMode
}

// small returns all files but the database, and adds their checksums, and the user's files, to info.
func (s Source) small(info *Info) ([]file, error) {
	all, err := filesIn(s.DataDir, certsName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: no server has been started there", err)
	} else if err != nil {
		return nil, err
	}
	ssh, err := filesIn(s.DataDir, sshName)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	all = append(all, ssh...)
	for _, path := range s.Files {
		stat, err := os.Stat(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		content, err := readSmall(path)
		if err != nil {
			return nil, err
		}
		all = append(all, file{fmt.Sprintf("%s/%d", filesName, len(info.Files)), content, 0o600})
		info.Files = append(info.Files, UserFile{path, stat.Mode().Perm()})
	}
	dir, elsewhere, err := s.manifestsDir()
	if err != nil {
		return nil, err
	}
	if elsewhere {
		info.ManifestsDir = dir
	}
	found, err := manifests(dir)
	if err != nil {
		return nil, err
	}
	all = append(all, found...)
	for _, f := range all {
		if info.Sums[f.name], err = sum(bytes.NewReader(f.content)); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// filesIn returns the files of a directory in dataDir, and those that links in it refer to.
func filesIn(dataDir, name string) ([]file, error) {
	dir := filepath.Join(dataDir, name)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var all []file
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		info, err := os.Stat(path)
		if err != nil || !info.Mode().IsRegular() || strings.HasPrefix(e.Name(), ".") {
			continue // a directory, or an unfinished file
		}
		content, err := readSmall(path)
		if err != nil {
			return nil, err
		}
		all = append(all, file{name + "/" + e.Name(), content, 0o600})
	}
	return all, nil
}

func readSmall(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err == nil && len(content) > fileMost {
		err = fmt.Errorf("%s has %d bytes: no certificate, key or configuration is so large", path, len(content))
	}
	return content, err
}

// Snapshot is a snapshot that is being read.
type Snapshot struct {
	Info
	small []file
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
		switch {
		case h.Name == datastore.EngineFile:
			for name := range s.Sums {
				if name != datastore.EngineFile && s.content(name) == nil {
					return nil, fmt.Errorf("%w: %s is missing", ErrNone, name)
				}
			}
			s.size = h.Size
			return s, nil
		case h.Size > mostOf(h.Name) || !first && !s.mayHave(h):
			return nil, fmt.Errorf("%w: %q does not belong there", ErrNone, h.Name)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			return nil, fmt.Errorf("%w: it ends within %s", ErrNone, h.Name)
		}
		if !first {
			if want, ok := s.Sums[h.Name]; ok {
				if got, _ := sum(bytes.NewReader(content)); got != want {
					return nil, fmt.Errorf("%w: %s is damaged: its checksum is wrong", ErrNone, h.Name)
				}
			}
			s.small = append(s.small, file{h.Name, content, fs.FileMode(h.Mode).Perm()})
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

// mostOf is the largest size of an entry that is not the database.
func mostOf(name string) int64 {
	if strings.HasPrefix(name, manifestsName+"/") {
		return manifestMost
	}
	return fileMost
}

// mayHave tells whether an archive may have an entry. No name leads out of its directory.
func (s *Snapshot) mayHave(h *tar.Header) bool {
	dir, name, found := strings.Cut(h.Name, "/")
	if h.Typeflag != tar.TypeReg || !found || !filepath.IsLocal(name) || strings.Contains(name, `\`) {
		return false
	}
	switch dir {
	case manifestsName:
		return path.Clean(name) == name
	case filesName:
		n, err := strconv.Atoi(name)
		return err == nil && n >= 0 && n < len(s.Files)
	}
	return (dir == certsName || dir == sshName) && !strings.Contains(name, "/")
}

// filesIn returns the files of a directory of the archive.
func (s *Snapshot) filesIn(dir string) []file {
	return slices.DeleteFunc(slices.Clone(s.small), func(f file) bool { return !strings.HasPrefix(f.name, dir+"/") })
}

// Certificate returns the content of a file in certs, or nil if there is none.
func (s *Snapshot) Certificate(name string) []byte { return s.content(certsName + "/" + name) }

func (s *Snapshot) content(name string) []byte {
	for _, f := range s.small {
		if f.name == name {
			return f.content
		}
	}
	return nil
}

// CopyDatabase writes the database to a file, which must not exist. It can be called once.
func (s *Snapshot) CopyDatabase(to string) error {
	f, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	if err = s.fill(f); err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	return err
}

// fill writes the database to an empty file. Between files, it shares blocks where the file system can do that.
func (s *Snapshot) fill(f *os.File) error {
	_, err := io.CopyN(f, s.in, s.size)
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w: it ends within its database", ErrNone)
	}
	if want := s.Sums[datastore.EngineFile]; err == nil && want != "" {
		if _, err = f.Seek(0, io.SeekStart); err == nil {
			var got string
			if got, err = sum(f); err == nil && got != want {
				err = fmt.Errorf("%w: its database is damaged: its checksum is wrong", ErrNone)
			}
		}
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
