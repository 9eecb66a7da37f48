package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/ownership"
)

// asOwner makes an action act as the owner of the data directory if root runs it: the
// service has to be able to open every file that it leaves there.
func asOwner(action cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		dir := ownedDir(c)
		removeStages(dir)
		return ownership.Act(dir, func() error { return action(c) })
	}
}

// asOwnerIn is asOwner for an action that makes a file elsewhere, if that is in a directory
// of the same owner's. Root's file in a directory of root's is made by root, which reads
// the data directory then.
func asOwnerIn(c *cli.Context, file string, action func() error) error {
	dir := ownedDir(c)
	if !ownership.Same(dir, filepath.Dir(Absolute(file))) {
		return action()
	}
	return ownership.Act(dir, action)
}

// ownedDir is the directory whose owner counts: that of the datastore if the command is
// about one and it is there, and otherwise the data directory.
func ownedDir(c *cli.Context) string {
	dir := c.String("data-dir")
	if c.String("datastore-endpoint") != "" {
		if store, err := datastoreDir(c); err == nil && Exists(store) {
			return store
		}
	}
	return dir
}

// withReadable calls body, which acts as the owner of dir, with the name of a file that the
// owner can read: file itself, or else a copy that root lets copyFile make. A backup of
// root's, or the state.db of a k3s, is rarely the owner's to read.
func withReadable(dir, file string, copyFile func(to string) error, body func(file string) error) (err error) {
	owner, foreign, err := ownership.Foreign(dir)
	if err != nil {
		return err
	}
	removeStages(dir)
	if !foreign || mayRead(dir, file) {
		return ownership.Act(dir, func() error { return body(file) })
	}
	stage, remove, err := directory.NewStage(stagePlace(dir))
	if err != nil {
		return fmt.Errorf("copy %s, which %s may not read: %w", file, owner, err)
	}
	defer func() { err = errors.Join(err, remove()) }()
	staged := filepath.Join(stage, filepath.Base(file))
	if err := copyFile(staged); err != nil {
		return err
	}
	// Only root can change the directory: nobody can put another file in this place.
	f, err := os.Open(staged)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := errors.Join(ownership.Lend(f, owner), os.Chmod(stage, 0o711)); err != nil {
		return err
	}
	return ownership.Act(dir, func() error { return body(staged) })
}

// removeStages removes the copies that root's killed commands have left: they have every
// Secret of a cluster, and the owner of dir can read them.
func removeStages(dir string) {
	if _, foreign, err := ownership.Foreign(dir); err == nil && foreign {
		directory.RemoveStages(stagePlace(dir))
	}
}

// mayRead tells whether the owner of dir can read file, with the log beside it.
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

// stagePlace is the directory beside dir, on the disk that must have room anyway, if
// only root can change it, and otherwise that for temporary files.
func stagePlace(dir string) string {
	place := filepath.Dir(Absolute(dir))
	info, err := os.Stat(place)
	_, foreign, foreignErr := ownership.Foreign(place)
	if err != nil || foreignErr != nil || foreign || info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
		return os.TempDir()
	}
	return place
}
