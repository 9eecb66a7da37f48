package datadir

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

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server/snapshots"
	"github.com/karve-k8s/karve/snapshot"
)

// Reset is `karve reset`.
func Reset() *cli.Command {
	return &cli.Command{
		Name: "reset", ArgsUsage: "[FILE]",
		Usage: "go back to a snapshot of this cluster; a server may run, and goes on",
		Description: "FILE is DATA-DIR/" + snapshot.FileName + " if none is named. What is not in it is deleted, what is\n" +
			"missing or has changed is put as it was, in one step. Revisions only rise:\n" +
			"watches go on and tell of the changes. What was there before is kept as a\n" +
			"snapshot, DATA-DIR/" + snapshot.FileName + ".before-reset-TIME.",
		Before: options.ReadDataDir,
		Flags: []cli.Flag{
			options.Config(), options.DataDir(), options.DatastoreEndpoint(), output.Flag(),
			&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only tell what differs"},
			&cli.BoolFlag{Name: "no-backup", Usage: "do not keep what was there before"},
		},
		Action: resetCluster,
	}
}

func resetCluster(c *cli.Context) error {
	if err := output.Check(c); err != nil {
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
		return output.Show(c, differs, func(w io.Writer) {
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
	return output.Show(c, done, func(w io.Writer) {
		fmt.Fprintf(w, "%d objects made again, %d changed back, %d deleted, in %v; the revision is %d\n",
			done.Missing, done.Changed, done.Surplus, done.Took.Round(10*time.Microsecond), done.Revision)
		if kept != "" {
			fmt.Fprintf(w, "what was there before is %s\n", kept)
		}
	})
}

// askReset lets the server do it, or does it itself if none runs.
func askReset(c *cli.Context, dir string, from *os.File, dryRun bool) (*control.Result, error) {
	_, held, err := directory.Holder(dir)
	if err != nil {
		return nil, fmt.Errorf("%w (run this as root or the server's user)", err)
	}
	if !held {
		if _, err := engineFile(c); err != nil {
			return nil, err
		}
		return snapshots.ResetStopped(c.Context, dir, c.String("datastore-endpoint"), from, dryRun)
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
