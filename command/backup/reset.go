package backup

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server/snapshots"
	"github.com/karve-k8s/karve/snapshot"
)

// beforeReset begins the names of the backups of states before a reset.
const beforeReset = snapshot.FileName + ".before-reset-"

// Reset is `karve reset`.
func Reset() *cli.Command {
	return &cli.Command{
		Name: "reset", ArgsUsage: "[FILE]",
		Usage: "return the cluster to a backup of it, while its server runs or not",
		Description: "FILE is DATA-DIR/" + snapshot.FileName + " by default. Objects that are not in the backup are deleted,\n" +
			"and those that are missing or have changed are restored, in one step. Revisions\n" +
			"only rise, so watches continue and report the changes. The state before the reset\n" +
			"is kept as the backup DATA-DIR/" + snapshot.FileName + ".before-reset-TIME; of these, the\n" +
			"newest five stay.",
		Before: options.FindDataDir,
		Flags: []cli.Flag{
			options.Config(), options.DataDir(), options.DatastoreEndpoint(), output.Flag(),
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask for confirmation"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only show what differs"},
			&cli.BoolFlag{Name: "no-backup", Usage: "do not keep a backup of the state before the reset"},
		},
		Action: resetCluster,
	}
}

func resetCluster(c *cli.Context) error {
	dir := options.Absolute(c.String("data-dir"))
	if !options.Exists(dir) {
		return servers.None(dir)
	}
	file, _ := asSnapshot(dir)
	if c.Args().Present() {
		file = options.Absolute(c.Args().First())
	}
	from, err := os.Open(file) // as root, if this is root: the server's user may not be able to read it
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: make a backup with karve snapshot, or name another FILE", err)
	} else if err != nil {
		return err
	}
	defer from.Close()
	return ownership.Act(options.OwnedDir(c), func() error { return resetTo(c, dir, from) })
}

// resetTo returns the cluster to an open backup.
func resetTo(c *cli.Context, dir string, from *os.File) error {
	differs, err := askReset(c, dir, from, true)
	if err != nil {
		return err
	}
	if c.Bool("dry-run") || differs.Len() == 0 {
		return output.Show(c, differs, func(w io.Writer) {
			fmt.Fprintf(w, "%d objects to restore, %d to change back, %d to delete\n", differs.Missing, differs.Changed, differs.Surplus)
			for _, key := range differs.Keys {
				fmt.Fprintln(w, output.Printable(key))
			}
			if left := differs.Len() - len(differs.Keys); left > 0 {
				fmt.Fprintf(w, "and %d more\n", left)
			}
		})
	}
	if !c.Bool("yes") {
		if err := confirm(c, dir, from, differs); err != nil {
			return err
		}
	}
	kept := ""
	if !c.Bool("no-backup") {
		if kept, err = keepState(c, dir); err != nil {
			return fmt.Errorf("nothing was reset: %w (--no-backup resets without a backup of the current state)", err)
		}
	}
	done, err := askReset(c, dir, from, false)
	if err != nil {
		return err
	}
	removed, err := removeKept(dir, kept, from)
	if err != nil {
		return fmt.Errorf("the cluster was reset, but older backups of the state before a reset stay: %w", err)
	}
	return output.Show(c, done, func(w io.Writer) {
		fmt.Fprintf(w, "%d objects restored, %d changed back, %d deleted in %v; the revision is %d\n",
			done.Missing, done.Changed, done.Surplus, done.Took.Round(10*time.Microsecond), done.Revision)
		if kept != "" {
			fmt.Fprintf(w, "the state before is kept as %s\n", kept)
		}
		for _, file := range removed {
			fmt.Fprintf(w, "removed %s, as five others are kept\n", file)
		}
	})
}

// keepState backs up the state before a reset, and returns the file.
func keepState(c *cli.Context, dir string) (file string, err error) {
	for {
		file, err = directory.Unused(filepath.Join(dir, beforeReset+time.Now().UTC().Format(directory.Stamp)))
		if err == nil {
			err = directory.Place(file, false, func(temp *directory.TempDir) error {
				_, err := makeBackup(c, dir, temp, false, func(string) {})
				return err
			})
		}
		if !errors.Is(err, fs.ErrExist) { // otherwise another reset took the name meanwhile
			return file, err
		}
	}
}

// keptStates is how many backups of states before a reset stay: each has all Secrets.
const keptStates = 5

// removeKept removes older ones than kept, but for the one that the cluster was reset to.
func removeKept(dir, kept string, but *os.File) (removed []string, err error) {
	if kept == "" {
		return nil, nil
	}
	all, err := directory.Kept(dir, beforeReset)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(file string) bool {
		return filepath.Base(but.Name()) == filepath.Base(file) || snapshot.WithFile(file, func(*snapshot.Snapshot) error { return nil }) != nil
	})
	for _, file := range directory.Surplus(all, kept, keptStates) {
		if err := os.Remove(file); errors.Is(err, fs.ErrNotExist) {
			continue // by another reset
		} else if err != nil {
			return removed, err
		}
		removed = append(removed, file)
	}
	return removed, nil
}

// askReset makes the server reset the cluster, or does it itself if none runs.
func askReset(c *cli.Context, dir string, from *os.File, dryRun bool) (*control.Result, error) {
	_, held, err := servers.Holder(dir)
	if err != nil {
		return nil, err
	}
	if !held {
		if _, err := engineFile(c); err != nil {
			return nil, err
		}
		return snapshots.ResetStopped(c.Context, dir, c.String("datastore-endpoint"), from, dryRun, func(to *datastore.Dump) error {
			return withEncryption(c, func(encryption string) error { return clusterOf(c, nil).CheckReadableIn(to.Each, encryption) })
		})
	}
	client := control.New(dir)
	defer client.Close()
	whole := io.NewSectionReader(from, 0, math.MaxInt64) // which the client cannot close
	if dryRun {
		return client.Reset(c.Context, whole, control.DryRun)
	}
	return client.Reset(c.Context, whole)
}

// confirm asks the user at the terminal.
func confirm(c *cli.Context, dir string, from *os.File, differs *control.Result) error {
	return snapshot.WithOpen(from, func(s *snapshot.Snapshot) error {
		what := fmt.Sprintf("resetting the cluster in %s to %s, created at %s: %d objects to restore, %d to change back, %d to delete",
			dir, from.Name(), s.Time.Local().Format(time.DateTime), differs.Missing, differs.Changed, differs.Surplus)
		return output.Agree(c, what, "nothing was reset")
	})
}
