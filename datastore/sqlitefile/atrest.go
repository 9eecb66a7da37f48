package sqlitefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/karve-k8s/karve/internal/atomicfile"

	"github.com/karve-k8s/karve/datastore/directory"
)

// hasLog tells whether there is a log beside the database with anything in it.
func HasWAL(path string) bool {
	info, err := os.Stat(path + "-wal")
	return err == nil && info.Size() > 0
}

func Size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// settle makes a database that nobody has open durable, once it is all in one
// file.
func Settle(path string) error {
	if err := Whole(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}

// wholeFile checks that a database which was closed needs no log beside it.
func Whole(path string) error {
	for _, suffix := range []string{"-wal", "-journal"} {
		info, err := os.Stat(path + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if info.Size() > 0 {
			return fmt.Errorf("%s was not closed in order: %s%s is still there (has another process opened it?)", path, path, suffix)
		}
		if err := os.Remove(path + suffix); err != nil {
			return err
		}
	}
	if err := os.Remove(path + "-shm"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// removeFile removes a database that was not finished, with what SQLite keeps
// beside it. One that is not there is no error.
func Remove(path string) error {
	for _, suffix := range []string{"-wal", "-shm", "-journal", ""} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// setAside renames a database that is whole in one file and that nobody has open;
// never over another file. It answers the new name.
func SetAside(path, suffix string) (string, error) {
	if err := Whole(path); err != nil {
		return "", err
	}
	name, err := directory.Unused(path + suffix)
	if err != nil {
		return "", err
	}
	if err := atomicfile.Rename(path, name); err != nil {
		return "", fmt.Errorf("keep old database: %w", err)
	}
	return name, nil
}
