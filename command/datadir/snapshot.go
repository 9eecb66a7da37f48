package datadir

import (
	"fmt"
	"io"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/servers"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/destination"
	"github.com/karve-k8s/karve/snapshot"
)

// Snapshot is `karve snapshot`.
func Snapshot() *cli.Command {
	return &cli.Command{
		Name: "snapshot", ArgsUsage: "[FILE]",
		Usage: "write the cluster to a file: objects, certificates and keys",
		Description: "FILE is DATA-DIR/" + snapshot.FileName + " by default; - is standard output. A server may run. The snapshot has all Secrets and keys of\n" +
			"the cluster, so only its owner can read it (mode 0600). karve reset returns to it,\n" +
			"and karve server --fork-from FILE starts a copy of the cluster.",
		Before: options.FindDataDir,
		Flags: []cli.Flag{
			options.Config(), options.DataDir(), options.DatastoreEndpoint(),
			&cli.BoolFlag{Name: "overwrite", Usage: "replace the file if it exists"},
		},
		Action: func(c *cli.Context) error {
			dir, name, err := snapshotOf(c)
			if err != nil {
				return err
			}
			file, err := destinationOf(c, name)
			if err != nil {
				return err
			}
			var info snapshot.Info
			err = place(c, file, false, func(temp *directory.TempDir) error {
				if err := placeSnapshot(c, dir, temp.File()); err != nil {
					return err
				}
				return snapshot.WithFile(temp.File(), func(s *snapshot.Snapshot) error {
					info = s.Info
					return nil
				})
			}, plainly)
			if err != nil {
				return err
			}
			fmt.Fprintf(told(c, file), "wrote %d keys at revision %d, certificates and keys to %s\n", info.Keys, info.Revision, called(file))
			return nil
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
		if c.Args().First() == destination.Stdout {
			return dir, destination.Stdout, nil
		}
		return dir, Absolute(c.Args().First()), nil
	}
	return "", "", fmt.Errorf("karve %s takes one FILE, got %d arguments", c.Command.Name, c.Args().Len())
}

// placeSnapshot makes a file in a directory of the owner of the data directory.
func placeSnapshot(c *cli.Context, dir, file string) error {
	return snapshot.Place(file, false, func(w io.Writer, scratch string) error { return takeSnapshot(c, dir, scratch, w) })
}
