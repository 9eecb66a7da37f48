package certs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
)

const (
	fileMode = 0o600
	dirMode  = 0o700
	// tempPattern names unfinished files, which a power cut leaves behind.
	tempPattern = ".karve-*.tmp"
)

// file is something to be written.
type file struct {
	path string
	data []byte
	mode os.FileMode
	// like, if not nil, is the file being replaced: its owner is kept.
	like os.FileInfo
}

// disk writes files so that after a power cut each is either the old or the new
// one, whole.
type disk struct {
	noSync bool
	// fault, set by tests only, is asked before every step and stops it by an
	// error. A step is "create", "write", "sync", "rename", "syncdir" or
	// "remove".
	fault func(step, path string) error
}

func (d disk) step(name, path string) error {
	if d.fault == nil {
		return nil
	}
	return d.fault(name, path)
}

// commit writes files, renaming them into place in the order given. When it
// returns nil, they are on stable storage.
//
// Syncing is what takes time, so the files are synced together and their
// directory once. That gives no order among the files of one commit after a
// power cut: what must not exist without something else goes into a later one.
func (d disk) commit(files []file) (err error) {
	if len(files) == 0 {
		return nil
	}
	temps := make([]string, 0, len(files))
	defer func() {
		if err == nil {
			return
		}
		for _, t := range temps {
			if d.step("remove", t) == nil {
				os.Remove(t)
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
		if err := d.step("create", f.path); err != nil {
			return err
		}
		t, err := os.CreateTemp(filepath.Dir(f.path), tempPattern)
		if err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
		temps, open = append(temps, t.Name()), append(open, t)
		if err := d.fill(t, f); err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
	}
	if err := d.syncAll(files, open); err != nil {
		return err
	}
	for i, f := range files { // Windows renames no open file
		if err := open[i].Close(); err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
	}
	for i, f := range files {
		if err := d.step("rename", f.path); err != nil {
			return err
		}
		if err := os.Rename(temps[i], f.path); err != nil {
			return fmt.Errorf("write %s: %w", f.path, err)
		}
	}
	synced := map[string]bool{}
	for _, f := range files {
		dir := filepath.Dir(f.path)
		if synced[dir] {
			continue
		}
		if err := d.syncDir(dir); err != nil {
			return err
		}
		synced[dir] = true
	}
	return nil
}

func (d disk) fill(t *os.File, f file) error {
	if err := d.step("write", f.path); err != nil {
		return err
	}
	if _, err := t.Write(f.data); err != nil {
		return err
	}
	if err := t.Chmod(f.mode); err != nil {
		return err
	}
	if f.like != nil {
		return keepOwner(t, f.like)
	}
	return nil
}

// syncAll syncs at the same time: the file system's journal then commits once
// or twice, not once per file.
func (d disk) syncAll(files []file, open []*os.File) error {
	for _, f := range files {
		if err := d.step("sync", f.path); err != nil {
			return err
		}
	}
	if d.noSync {
		return nil
	}
	errs := make([]error, len(open))
	var wg sync.WaitGroup
	for i, t := range open {
		wg.Go(func() {
			if err := t.Sync(); err != nil {
				errs[i] = fmt.Errorf("write %s: %w", files[i].path, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// syncDir makes renames in dir permanent.
func (d disk) syncDir(dir string) error {
	if err := d.step("syncdir", dir); err != nil {
		return err
	}
	if d.noSync {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	defer f.Close()
	// Some file systems (FUSE, network) cannot sync a directory and say so.
	if err := f.Sync(); err != nil && !errors.Is(err, errors.ErrUnsupported) && !errors.Is(err, fs.ErrInvalid) && !unsyncable(err) {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// mkdir makes dir and what is missing above it, for this user only, and makes
// the entry permanent. A directory that exists is left as it is.
func (d disk) mkdir(dir string) error {
	if info, err := os.Stat(dir); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory: move it out of the way", dir)
		}
		return nil
	}
	if err := os.MkdirAll(dir, dirMode); err != nil {
		return fmt.Errorf("make directory: %w", err)
	}
	return d.syncDir(filepath.Dir(dir))
}

// sweep removes what a power cut left unfinished in dir.
func (d disk) sweep(dir string) {
	entries, _ := os.ReadDir(dir) // what cannot be read is reported by whoever reads it next
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if ok, _ := filepath.Match(tempPattern, e.Name()); ok && d.step("remove", path) == nil {
			os.Remove(path) // a leftover that stays does no harm
		}
	}
}

// target follows symbolic links from path to the file they mean, which need not
// exist: replacing the link itself would cut it.
func target(path string) (string, error) {
	for range 40 {
		to, err := os.Readlink(path)
		if err != nil {
			return path, nil // not a link, or nothing there
		}
		if !filepath.IsAbs(to) {
			to = filepath.Join(filepath.Dir(path), to)
		}
		path = to
	}
	return "", fmt.Errorf("%s: too many symbolic links", path)
}
