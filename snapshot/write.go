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
	"path/filepath"
	"strings"
	"time"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/version"
)

// Source is a cluster that is backed up.
type Source struct {
	// DataDir has its certificates. If it is empty, the backup has only the database.
	DataDir string
	// Backup writes its datastore to a file that does not exist yet. If it is nil, the datastore is the database in
	// StoreDir, which no server uses.
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
	return backup.Write(ctx, sqlitefile.ClosedFile(filepath.Join(s.StoreDir, datastore.EngineFile)), to)
}

// FromServer makes the server of a data directory write a backup to w. asked is false if no server runs there. While one runs, no other
// process can read its database, which may even be in memory. If database is not empty and the server uses another one, that is an error.
func FromServer(ctx context.Context, dataDir, database string, w io.Writer) (asked bool, err error) {
	_, held, err := directory.Holder(dataDir)
	if err != nil || !held {
		return false, err
	}
	client := control.New(dataDir)
	defer client.Close()
	if database != "" {
		if err := client.Uses(ctx, database); err != nil {
			return true, err
		}
	}
	return true, client.Snapshot(ctx, w)
}

// SizeOf returns the size of a database, with its WAL.
func SizeOf(database string) int64 {
	return sqlitefile.Size(database) + sqlitefile.Size(database+"-wal")
}

// Space returns how much space it takes to make a backup of a database of that size: for two copies, and some that stays free.
func Space(size int64) int64 { return 2*size + 64<<20 }

// CheckSpace returns an error unless a directory has that much space. free is [directory.FreeBytes].
func CheckSpace(dir string, need int64, free func(string) (int64, bool)) error {
	if has, known := free(dir); known && has < need {
		return fmt.Errorf("%s has %d MiB free, and a backup needs %d MiB: free some space", dir, has>>20, need>>20)
	}
	return nil
}

// Scratch makes a temporary directory with that much space, in dir or, where that is read-only or too full, in TMPDIR.
func Scratch(dir string, need int64) (*directory.TempDir, error) {
	in := func(above string) (*directory.TempDir, error) {
		if err := CheckSpace(above, need, directory.FreeBytes); err != nil {
			return nil, err
		}
		return directory.NewTempDir(above)
	}
	temp, err := in(dir)
	if err != nil {
		var also error
		if temp, also = in(os.TempDir()); also != nil {
			return nil, ownership.ExplainTemp(fmt.Errorf("%w; %w", err, also))
		}
	}
	return temp, nil
}

// Place makes a file that write fills. scratch is a directory for temporary files. The file gets its name when
// all of it is on the disk. When Place returns, the name is on the disk, too. If the process is killed, the next
// backup beside the file removes what it leaves.
func Place(to string, overwrite bool, write func(w io.Writer, scratch string) error) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return fmt.Errorf("make backup: %w", err)
	}
	if _, err := os.Lstat(to); err == nil && !overwrite {
		return fmt.Errorf("make backup: %w: %s", ErrExists, to)
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
		return fmt.Errorf("make backup: %w: %s", ErrExists, to)
	} else if err != nil {
		return fmt.Errorf("make backup %s: %w", to, err)
	}
	return nil
}

// Write writes a backup, whose database it verifies. scratch is a directory with space for a copy of the datastore. The first byte is
// written when everything has been read.
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

// small returns all files but the database, and adds their checksums, and the user's files, to info.
func (s Source) small(info *Info) ([]file, error) {
	if s.DataDir == "" {
		return nil, nil
	}
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

// MakeVerified makes a backup as the file of temp, and compares the file with what was written. [Write] has verified the
// database, unless it is another release's. write writes the backup; scratch is a directory with space for a copy of the datastore.
func MakeVerified(ctx context.Context, temp *directory.TempDir, write func(w io.Writer, scratch string) error) (*Info, error) {
	f, err := os.OpenFile(temp.File(), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	written := sha256.New()
	if err := write(io.MultiWriter(f, written), temp.Dir()); err != nil {
		return nil, err
	}
	if err := f.Sync(); err != nil {
		return nil, err
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err
	}
	if got, err := sum(f); err != nil {
		return nil, err
	} else if got != hex.EncodeToString(written.Sum(nil)) {
		return nil, fmt.Errorf("%s: the disk returns something else than was written", f.Name())
	}
	var info Info
	return &info, WithOpen(f, func(s *Snapshot) error {
		info = s.Info
		if s.Version == version.Full() {
			return nil
		}
		_, err := s.Verify(ctx, temp.Dir())
		return err
	})
}
