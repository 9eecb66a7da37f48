package command

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/snapshot"
)

// snapshotCommand is `karve snapshot`.
func snapshotCommand() *cli.Command {
	return &cli.Command{
		Name: "snapshot", ArgsUsage: "[FILE]",
		Usage: "write the cluster, objects and certificates, to a file; a server may run",
		Description: "FILE is DATA-DIR/" + snapshot.FileName + " if none is named. All secrets of the cluster are in it:\n" +
			"it is for its administrator (mode 0600). karve reset goes back to it, and\n" +
			"karve server --fork-from FILE starts another cluster of it.",
		Before: readDataDir,
		Flags: []cli.Flag{
			configFlag(), dataDirFlag(), datastoreEndpointFlag(),
			&cli.BoolFlag{Name: "overwrite", Usage: "replace the file if it is there"},
		},
		Action: func(c *cli.Context) error {
			dir, file, err := snapshotOf(c)
			if err != nil {
				return err
			}
			take := func() error { return takeSnapshot(c, dir, file, c.Bool("overwrite")) }
			if err := asOwnerIn(c, file, take); errors.Is(err, snapshot.ErrExists) {
				return fmt.Errorf("%w (--overwrite replaces it)", err)
			} else if err != nil {
				return err
			}
			return snapshot.WithFile(file, func(s *snapshot.Snapshot) error {
				fmt.Fprintf(c.App.Writer, "%d keys at revision %d, and the certificates, are in %s\n", s.Keys, s.Revision, file)
				return nil
			})
		},
	}
}

// snapshotOf is the data directory, and the file that is named or usual.
func snapshotOf(c *cli.Context) (dir, file string, err error) {
	dir = absolute(c.String("data-dir"))
	if !exists(dir) {
		return "", "", fmt.Errorf("%s is not there: no server has been started with this --data-dir", dir)
	}
	switch c.Args().Len() {
	case 0:
		return dir, filepath.Join(dir, snapshot.FileName), nil
	case 1:
		return dir, absolute(c.Args().First()), nil
	}
	return "", "", fmt.Errorf("karve %s takes one FILE, after the options, got %d", c.Command.Name, c.Args().Len())
}

// takeSnapshot asks the server, if one runs: only it has what it keeps in memory.
func takeSnapshot(c *cli.Context, dir, file string, overwrite bool) error {
	_, held, err := datastore.Holder(dir)
	if err != nil {
		return fmt.Errorf("%w (run this as root or the server's user)", err)
	}
	if held {
		if exists(file) && !overwrite {
			return fmt.Errorf("make snapshot: %w: %s", snapshot.ErrExists, file)
		}
		client := control.New(dir)
		defer client.Close()
		return snapshot.Place(file, overwrite, func(w io.Writer) error { return client.Snapshot(c.Context, w) })
	}
	path, err := engineFile(c)
	if err != nil {
		return err
	}
	_, err = snapshot.Make(c.Context, snapshot.Source{DataDir: dir, StoreDir: filepath.Dir(path)}, file, overwrite)
	return err
}

// resetCommand is `karve reset`.
func resetCommand() *cli.Command {
	return &cli.Command{
		Name: "reset", ArgsUsage: "[FILE]",
		Usage: "go back to a snapshot of this cluster; a server may run, and goes on",
		Description: "FILE is DATA-DIR/" + snapshot.FileName + " if none is named. What is not in it is deleted, what is\n" +
			"missing or has changed is put as it was, in one step. Revisions only rise:\n" +
			"watches go on and tell of the changes. What was there before is kept as a\n" +
			"snapshot, DATA-DIR/" + snapshot.FileName + ".before-reset-TIME.",
		Before: readDataDir,
		Flags: []cli.Flag{
			configFlag(), dataDirFlag(), datastoreEndpointFlag(), outputFlag(),
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only tell what differs"},
			&cli.BoolFlag{Name: "no-backup", Usage: "do not keep what was there before"},
		},
		Action: resetCluster,
	}
}

func resetCluster(c *cli.Context) error {
	if err := wantFormat(c); err != nil {
		return err
	}
	dir, file, err := snapshotOf(c)
	if err != nil {
		return err
	}
	from, err := os.Open(file) // by root, if this is root: the server's user may not read it
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%w: make a snapshot by karve snapshot", err)
	} else if err != nil {
		return err
	}
	defer from.Close()
	return ownership.Act(ownedDir(c), func() error { return resetTo(c, dir, from) })
}

// resetTo goes back to the snapshot that was opened.
func resetTo(c *cli.Context, dir string, from *os.File) error {
	differs, err := askReset(c, dir, from, true)
	if err != nil {
		return err
	}
	if c.Bool("dry-run") || differs.Len() == 0 {
		return show(c, differs, func(w io.Writer) {
			fmt.Fprintf(w, "%d to be made again, %d to be changed back, %d to be deleted\n", differs.Missing, differs.Changed, differs.Surplus)
			for _, key := range differs.Keys {
				fmt.Fprintln(w, key)
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
		kept = filepath.Join(dir, snapshot.FileName+".before-reset-"+time.Now().UTC().Format("20060102T150405Z"))
		if err := takeSnapshot(c, dir, kept, true); err != nil { // over one of the same second
			return fmt.Errorf("nothing is reset: %w (--no-backup resets without)", err)
		}
	}
	done, err := askReset(c, dir, from, false)
	if err != nil {
		return err
	}
	return show(c, done, func(w io.Writer) {
		fmt.Fprintf(w, "%d objects made again, %d changed back, %d deleted, in %v; the revision is %d\n",
			done.Missing, done.Changed, done.Surplus, done.Took.Round(10*time.Microsecond), done.Revision)
		if kept != "" {
			fmt.Fprintf(w, "what was there before is %s\n", kept)
		}
	})
}

// askReset lets the server do it, or does it itself if none runs.
func askReset(c *cli.Context, dir string, from *os.File, dryRun bool) (*control.Result, error) {
	_, held, err := datastore.Holder(dir)
	if err != nil {
		return nil, fmt.Errorf("%w (run this as root or the server's user)", err)
	}
	if !held {
		if _, err := engineFile(c); err != nil {
			return nil, err
		}
		return server.ResetStopped(c.Context, dir, c.String("datastore-endpoint"), from, dryRun)
	}
	client := control.New(dir)
	defer client.Close()
	whole := io.NewSectionReader(from, 0, math.MaxInt64) // the client would close the file itself
	if dryRun {
		return client.Reset(c.Context, whole, control.DryRun)
	}
	return client.Reset(c.Context, whole)
}

// confirm asks a person who sits at a terminal.
func confirm(c *cli.Context, dir string, from *os.File, differs *control.Result) error {
	return snapshot.WithOpen(from, func(s *snapshot.Snapshot) error {
		what := fmt.Sprintf("the cluster in %s goes back to %s, of %s: %d objects made again, %d changed back, %d deleted",
			dir, from.Name(), s.Time.Local().Format(time.DateTime), differs.Missing, differs.Changed, differs.Surplus)
		if !term.IsTerminal(int(os.Stdin.Fd())) {
			return fmt.Errorf("%s: nobody is there to be asked, and --yes is not given", what)
		}
		fmt.Fprintf(c.App.ErrWriter, "%s. Go on? [y/N] ", what)
		answer, _ := bufio.NewReader(os.Stdin).ReadString('\n')
		if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
			return errors.New("nothing is reset")
		}
		return nil
	})
}
