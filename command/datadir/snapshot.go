package datadir

import (
	"errors"
	"fmt"
	"io"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/servers"
	"github.com/karve-k8s/karve/snapshot"
)

// Snapshot is `karve snapshot`.
func Snapshot() *cli.Command {
	return &cli.Command{
		Name: "snapshot", ArgsUsage: "[FILE]",
		Usage: "write the cluster to a file: objects, certificates and keys",
		Description: "FILE is DATA-DIR/" + snapshot.FileName + " by default. A server may run. The snapshot has all Secrets and keys of\n" +
			"the cluster, so only its owner can read it (mode 0600). karve reset returns to it,\n" +
			"and karve server --fork-from FILE starts a copy of the cluster.",
		Before: options.FindDataDir,
		Flags: []cli.Flag{
			options.Config(), options.DataDir(), options.DatastoreEndpoint(),
			&cli.BoolFlag{Name: "overwrite", Usage: "replace the file if it exists"},
		},
		Action: func(c *cli.Context) error {
			dir, file, err := snapshotOf(c)
			if err != nil {
				return err
			}
			take := func() error { return placeSnapshot(c, dir, file, c.Bool("overwrite")) }
			if err := asOwnerIn(c, file, take); errors.Is(err, snapshot.ErrExists) {
				return fmt.Errorf("%w (--overwrite replaces it)", err)
			} else if err != nil {
				return err
			}
			return snapshot.WithFile(file, func(s *snapshot.Snapshot) error {
				fmt.Fprintf(c.App.Writer, "wrote %d keys at revision %d, certificates and keys to %s\n", s.Keys, s.Revision, file)
				return nil
			})
		},
	}
}

// snapshotOf is the data directory, and the file that the argument names or that is the default.
func snapshotOf(c *cli.Context) (dir, file string, err error) {
	dir = Absolute(c.String("data-dir"))
	if !Exists(dir) {
		return "", "", servers.None(dir)
	}
	switch c.Args().Len() {
	case 0:
		return dir, filepath.Join(dir, snapshot.FileName), nil
	case 1:
		return dir, Absolute(c.Args().First()), nil
	}
	return "", "", fmt.Errorf("karve %s takes one FILE, got %d arguments", c.Command.Name, c.Args().Len())
}

func placeSnapshot(c *cli.Context, dir, file string, overwrite bool) error {
	return snapshot.Place(file, overwrite, func(w io.Writer, scratch string) error { return takeSnapshot(c, dir, scratch, w) })
}
