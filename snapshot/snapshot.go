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

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
)

// The errors that callers can tell apart.
var (
	ErrNone     = errors.New("not a backup of a cluster")
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

type file struct {
	name    string // in the archive
	content []byte
	mode    fs.FileMode
}

// sum returns the SHA-256 of a reader's contents.
func sum(r io.Reader) (string, error) {
	h := sha256.New()
	_, err := io.Copy(h, r)
	return hex.EncodeToString(h.Sum(nil)), err
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
			return nil, fmt.Errorf("%w, or a sealed one", ErrNone)
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
			return nil, fmt.Errorf("backup of format %d: %w", s.Format, ErrNewer)
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

// Database reads the database, without a check of its sum.
func (s *Snapshot) Database() io.Reader { return io.LimitReader(s.in, s.size) }

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
func WithFile(path string, body func(*Snapshot) error) error { return WithSource(path, nil, body) }

// WithOpen is WithFile for an open file, from its beginning.
func WithOpen(f *os.File, body func(*Snapshot) error) error {
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	return with(f.Name(), f, body)
}

// WithSource is [WithFile] for a file that open opens, if it is not nil.
func WithSource(source string, open func() (io.ReadCloser, error), body func(*Snapshot) error) error {
	if open == nil {
		open = func() (io.ReadCloser, error) { return os.Open(source) }
	}
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	return with(source, r, body)
}

func with(name string, r io.Reader, body func(*Snapshot) error) error {
	s, err := Read(r)
	if err == nil {
		err = body(s)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
