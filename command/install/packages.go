package install

import (
	"context"
	"fmt"
	"os"

	"github.com/karve-k8s/karve/internal/ownership"
)

// BackUp makes the backup of before an upgrade for a package, by i.Source, while the server may run. Without data of
// Karve's own, it makes none, and says so if there is a cluster all the same.
//
// The backup is beside the usual data directory and not beside another one, where another user could put a link for
// root to write through.
func (i *Installer) BackUp(ctx context.Context) error {
	c, err := readConfig(i.Config, i.DataDir)
	switch {
	case err != nil:
		return err
	case c.external():
		i.Say("the datastore is an external one: back it up yourself")
		return nil
	case c.storeDir == "":
		i.Say("the datastore is in memory: the restart of the service begins an empty cluster")
		return nil
	case !c.hasData():
		return nil
	}
	b := backup{dir: i.DataDir + ".before-upgrade", store: c.storeDir}
	if info, err := os.Lstat(b.dir); err == nil && (!info.IsDir() || !ownership.Mine(info) || info.Mode().Perm()&0o022 != 0) {
		return fmt.Errorf("%s has to be a directory that only root can change, and no link: move it away", b.dir)
	}
	return i.backUp(ctx, &b, i.Source, i.Config)
}
