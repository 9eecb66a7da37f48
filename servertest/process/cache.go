package process

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"
)

// record describes the program in the cache. It is in a file beside it.
type record struct {
	SHA256   string    `json:"sha256"` // of the unpacked program
	Size     int64     `json:"size"`
	Modified time.Time `json:"modified"` // when a program with that checksum was last seen
}

func recordOf(program string) string { return program + ".json" }

// cached reports whether the program at path is what was unpacked from the release. It reads the whole program
// only if its size or time is not the recorded one. It returns an error if others could have changed it.
func cached(path string) (bool, error) {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		return false, err
	}
	for _, place := range []string{filepath.Dir(path), path} {
		if err := onlyMine(place); err != nil {
			return false, fmt.Errorf("%w: remove %s, so that it is downloaded again, or set %s", err, filepath.Dir(path), BinaryVariable)
		}
	}
	var kept record
	text, err := os.ReadFile(recordOf(path))
	if err != nil || json.Unmarshal(text, &kept) != nil || !info.Mode().IsRegular() {
		return false, nil // as an earlier version of this package leaves it
	}
	if info.Size() == kept.Size && info.ModTime().Equal(kept.Modified) {
		return true, nil
	}
	sum, err := sumOfFile(path)
	if err != nil || sum != kept.SHA256 {
		return false, err
	}
	_ = writeRecord(path, sum) // who may not write reads the program each time
	return true, nil
}

func sumOfFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	hash := sha256.New()
	if _, err := io.Copy(hash, f); err != nil {
		return "", err
	}
	return fmt.Sprintf("%x", hash.Sum(nil)), nil
}

// writeRecord records the program at path, which has the checksum sum.
func writeRecord(path, sum string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	text, err := json.Marshal(record{sum, info.Size(), info.ModTime()})
	if err != nil {
		return err
	}
	partial, err := os.CreateTemp(filepath.Dir(path), "partial-")
	if err != nil {
		return err
	}
	defer os.Remove(partial.Name()) // fails after the rename
	_, err = partial.Write(text)
	if err := errors.Join(err, partial.Chmod(0o644), partial.Close()); err != nil {
		return err
	}
	return os.Rename(partial.Name(), recordOf(path))
}
