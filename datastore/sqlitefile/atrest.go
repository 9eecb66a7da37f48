package sqlitefile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
)

// HasWAL reports whether there is a WAL beside the database that is not empty.
func HasWAL(path string) bool {
	info, err := os.Stat(path + "-wal")
	return err == nil && info.Size() > 0
}

// Size returns the size of a file, or 0 if there is none.
func Size(path string) int64 {
	info, err := os.Stat(path)
	if err != nil {
		return 0
	}
	return info.Size()
}

// Settle makes a closed database durable. It must be whole; see [Whole].
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

// Whole checks that a closed database needs no WAL or journal beside it, and removes empty ones.
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

// Remove removes an unfinished database with the files that SQLite keeps beside it. A missing
// file is no error.
func Remove(path string) error {
	for _, suffix := range []string{"-wal", "-shm", "-journal", ""} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}
