package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/ownership"
)

// asOwner makes an action of root's act as the owner of the data directory, so that the service
// can open every file that the action creates there.
func asOwner(action cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		dir := ownedDir(c)
		removeStages(dir)
		return ownership.Act(dir, func() error { return action(c) })
	}
}

// ownedDir is the directory whose owner counts: that of the datastore, if the command names one
// that exists, and otherwise the data directory.
func ownedDir(c *cli.Context) string {
	if c.String("datastore-endpoint") != "" {
		if store, err := datastoreDir(c); err == nil && Exists(store) {
			return Absolute(store)
		}
	}
	return Absolute(c.String("data-dir"))
}

// withReadable calls body as the owner of dir, with a file that the owner can read: file itself,
// or a copy that copyFile makes as root. The owner can rarely read root's backup, or the state.db of
// a k3s.
func withReadable(dir, file string, copyFile func(to string) error, body func(file string) error) (err error) {
	owner, foreign, err := ownership.Foreign(dir)
	if err != nil {
		return err
	}
	removeStages(dir)
	if !foreign || mayRead(dir, file) {
		return ownership.Act(dir, func() error { return body(file) })
	}
	stage, err := directory.NewTempDir(stagePlace(dir))
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

// removeStages removes the copies that killed commands of root's have left. They have all Secrets
// of a cluster, and the owner of dir can read them.
func removeStages(dir string) {
	if _, foreign, err := ownership.Foreign(dir); err == nil && foreign {
		directory.RemoveAbandoned(stagePlace(dir))
	}
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

// stagePlace is the directory above dir, whose disk needs the space anyway, if only root can change
// it, and otherwise the directory for temporary files.
func stagePlace(dir string) string {
	place := filepath.Dir(Absolute(dir))
	info, err := os.Stat(place)
	_, foreign, foreignErr := ownership.Foreign(place)
	if err != nil || foreignErr != nil || foreign || info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
		return os.TempDir()
	}
	return place
}

// readAsOwner is readFiles as the owner of the directory: no link or file there leads root to what the owner may not read.
func readAsOwner(dir string, now time.Time) (s *ServerState, config *rest.Config, err error) {
	err = ownership.Act(dir, func() (err error) {
		s, config, err = readFiles(dir, now)
		return err
	})
	return s, config, err
}
