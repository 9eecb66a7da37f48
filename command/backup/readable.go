package backup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/ownership"
)

// withReadable calls body as the owner of dir, with a file that the owner can read: file itself,
// or a copy that copyFile makes as root. The owner can rarely read root's backup, or the state.db of
// a k3s.
func withReadable(dir, file string, copyFile func(to string) error, body func(file string) error) (err error) {
	owner, foreign, err := ownership.Foreign(dir)
	if err != nil {
		return err
	}
	options.RemoveStages(dir)
	if !foreign || mayRead(dir, file) {
		return ownership.Act(dir, func() error { return body(file) })
	}
	stage, err := directory.NewTempDir(options.StagePlace(dir))
	if err != nil {
		return fmt.Errorf("copy %s, which %s cannot read: %w", file, owner, err)
	}
	defer func() { err = errors.Join(err, stage.Remove()) }()
	staged := filepath.Join(stage.Dir(), filepath.Base(file))
	if err := copyFile(staged); err != nil {
		return err
	}
	// Only root can change the directory, so nobody can replace the file.
	f, err := os.Open(staged)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := errors.Join(ownership.Lend(f, owner), os.Chmod(stage.Dir(), 0o711)); err != nil {
		return err
	}
	return ownership.Act(dir, func() error { return body(staged) })
}

// mayRead tells whether the owner of dir can read file and the WAL beside it.
func mayRead(dir, file string) bool {
	return ownership.Act(dir, func() error {
		f, err := os.Open(file)
		if err != nil {
			return err
		}
		f.Close()
		f, err = os.Open(file + "-wal")
		if err == nil {
			f.Close()
		} else if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	}) == nil
}
