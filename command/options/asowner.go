package options

import (
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/kine/location"
)

// AsOwner makes an action of root's act as the owner of the data directory, so that the service
// can open every file that the action creates there.
func AsOwner(action cli.ActionFunc) cli.ActionFunc {
	return func(c *cli.Context) error {
		dir := OwnedDir(c)
		RemoveStages(dir)
		return ownership.Act(dir, func() error { return action(c) })
	}
}

// OwnedDir is the directory whose owner counts: that of the datastore, if the command names one
// that exists, and otherwise the data directory.
func OwnedDir(c *cli.Context) string {
	if c.String("datastore-endpoint") != "" {
		if store, err := DatastoreDir(c); err == nil && Exists(store) {
			return Absolute(store)
		}
	}
	return Absolute(c.String("data-dir"))
}

// RemoveStages removes the copies that killed commands of root's have left. They have all Secrets
// of a cluster, and the owner of dir can read them.
func RemoveStages(dir string) {
	if _, foreign, err := ownership.Foreign(dir); err == nil && foreign {
		directory.RemoveAbandoned(StagePlace(dir))
	}
}

// StagePlace is the directory above dir, whose disk needs the space anyway, if only root can change
// it, and otherwise the directory for temporary files.
func StagePlace(dir string) string {
	place := filepath.Dir(Absolute(dir))
	info, err := os.Stat(place)
	_, foreign, foreignErr := ownership.Foreign(place)
	if err != nil || foreignErr != nil || foreign || info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
		return os.TempDir()
	}
	return place
}

// DatastoreDir is the directory of the database, which need not exist.
func DatastoreDir(c *cli.Context) (string, error) {
	return location.Dir(c.String("datastore-endpoint"), c.String("data-dir"))
}
