// Package atomicfile places files whole and durably: at every moment, and after a power cut,
// a file is either the old one or the new one.
//
// The content goes to a temporary file in the same directory, which is synced and renamed;
// then the directory is synced, which makes the name durable. DESIGN.md says why no library
// does this.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

// TempPattern matches the names of temporary files, as [filepath.Match] has it. A power cut
// leaves them behind; [Writer.Sweep] removes them.
const TempPattern = ".karve-*.tmp"

// File is a file to write.
type File struct {
	Path string
	Data []byte
	// Mode is the exact mode, whatever the umask is.
	Mode fs.FileMode
	// Owner, if not nil, describes the file whose owner and group this one gets. Only root
	// can give files away: for any other user the field has no effect.
	Owner fs.FileInfo
}

// Writer places files. The zero value is ready to use.
type Writer struct {
	// NoSync leaves out every fsync, for files that need not survive a power cut. A program
	// that reads one meanwhile still sees the old content or the new one.
	NoSync bool
	// Fault is for tests. Each step asks it first, and fails with the error that it returns.
	// A step is "create", "write", "sync", "rename", "syncdir" or "remove".
	Fault func(step, path string) error
}

// Write places one file with exactly mode. See [Writer.Write].
func Write(path string, data []byte, mode fs.FileMode) error {
	return Writer{}.Write(File{Path: path, Data: data, Mode: mode})
}

// Write places files. They appear in the order given. When Write returns nil, all of them are
// on stable storage. When it returns an error, it has removed its temporary files; an error
// after the first rename leaves the files that have been renamed.
//
// The files are synced at the same time and each directory is synced once, because the syncs
// take most of the time. After a power cut, therefore, any of the files of one call may be
// the old one. A file that must not be there without another needs a call of its own.
func (w Writer) Write(files ...File) (err error) {
	if len(files) == 0 {
		return nil
	}
	temps := make([]string, 0, len(files))
	defer func() {
		if err == nil {
			return
		}
		for _, t := range temps {
			if w.step("remove", t) == nil {
				os.Remove(t) // of those that were renamed there is none
			}
		}
	}()
	open := make([]*os.File, 0, len(files))
	defer func() {
		for _, f := range open {
			f.Close()
		}
	}()
	for _, f := range files {
		if err := w.step("create", f.Path); err != nil {
			return err
		}
		t, err := os.CreateTemp(filepath.Dir(f.Path), TempPattern)
		if err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
		temps, open = append(temps, t.Name()), append(open, t)
		if err := w.fill(t, f); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	if err := w.syncAll(files, open); err != nil {
		return err
	}
	for i, f := range files {
		if err := open[i].Close(); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	for i, f := range files {
		if err := w.step("rename", f.Path); err != nil {
			return err
		}
		if err := os.Rename(temps[i], f.Path); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	synced := map[string]bool{}
	for _, f := range files {
		dir := filepath.Dir(f.Path)
		if synced[dir] {
			continue
		}
		if err := w.syncDir(dir); err != nil {
			return err
		}
		synced[dir] = true
	}
	return nil
}

func (w Writer) fill(t *os.File, f File) error {
	if err := w.step("write", f.Path); err != nil {
		return err
	}
	if _, err := t.Write(f.Data); err != nil {
		return err
	}
	if err := t.Chmod(f.Mode); err != nil {
		return err
	}
	if f.Owner != nil {
		return keepOwner(t, f.Owner)
	}
	return nil
}

// syncAll syncs all files at the same time: the journal of the file system then commits once
// or twice, and not once for each file.
func (w Writer) syncAll(files []File, open []*os.File) error {
	for _, f := range files {
		if err := w.step("sync", f.Path); err != nil {
			return err
		}
	}
	if w.NoSync {
		return nil
	}
	errs := make([]error, len(open))
	var syncing sync.WaitGroup
	for i, t := range open {
		syncing.Go(func() {
			if err := t.Sync(); err != nil {
				errs[i] = fmt.Errorf("write %s: %w", files[i].Path, err)
			}
		})
	}
	syncing.Wait()
	return errors.Join(errs...)
}

func (w Writer) step(name, path string) error {
	if w.Fault == nil {
		return nil
	}
	return w.Fault(name, path)
}

// Create places a file (0600) that write fills. Without overwrite, a file that exists is left
// alone, and the error is [fs.ErrExist].
func Create(path string, overwrite bool, write func(io.Writer) error) (err error) {
	t, err := os.CreateTemp(filepath.Dir(path), TempPattern) // 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			os.Remove(t.Name())
		}
	}()
	err = write(t)
	if err == nil {
		err = t.Sync()
	}
	if closing := t.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if overwrite {
		return Rename(t.Name(), path)
	}
	return RenameNew(t.Name(), path)
}

// Sweep removes the temporary files that a power cut has left in dir. No other process may
// be writing there.
func (w Writer) Sweep(dir string) {
	entries, _ := os.ReadDir(dir) // the next one to read dir reports the error
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if temporary, _ := filepath.Match(TempPattern, e.Name()); temporary && w.step("remove", path) == nil {
			os.Remove(path) // a temporary file that stays does no harm
		}
	}
}
