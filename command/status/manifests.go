package status

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/control"
)

// Manifests is `karve manifests`.
func Manifests() *cli.Command {
	return &cli.Command{
		Name:  "manifests",
		Usage: "apply the server's manifests now, and delete the objects of removed ones",
		Subcommands: []*cli.Command{
			{
				Name:        "apply",
				Usage:       "apply all files now, and wait until that is done",
				Description: "Exit code: 0 if all files are applied, otherwise 1.",
				Flags:       []cli.Flag{options.Config(), options.DataDir(), output.Flag()},
				Before:      options.FindDataDir, Action: applyManifests,
			},
			{
				Name:  "prune",
				Usage: "delete the objects that the server has made and no file describes any more",
				Description: "The command first applies what has changed. It deletes nothing while a file or a directory\n" +
					"has a problem. With a Namespace, everything in it is deleted, and with a\n" +
					"CustomResourceDefinition all of its custom resources.",
				Flags: []cli.Flag{
					options.Config(), options.DataDir(), output.Flag(),
					&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask for confirmation"},
					&cli.BoolFlag{Name: "dry-run", Usage: "only show which objects would be deleted"},
					&cli.BoolFlag{Name: "all", Usage: "go on if no file describes an object: delete the objects of all files"},
				},
				Before: options.FindDataDir, Action: pruneManifests,
			},
		},
	}
}

// withRunning calls ask with the running server of the data directory.
func withRunning(c *cli.Context, ask func(*control.Client) error) error {
	dir := options.Absolute(c.String("data-dir"))
	if _, held, err := servers.Holder(dir); err != nil {
		return err
	} else if !held {
		return servers.None(dir)
	}
	client := control.New(dir)
	defer client.Close()
	return ask(client)
}

func applyManifests(c *cli.Context) error {
	return withRunning(c, func(client *control.Client) error {
		all, err := client.ApplyManifests(c.Context)
		if err != nil {
			return err
		}
		err = output.Show(c, all, func(w io.Writer) {
			line := func(name, format string, args ...any) { fmt.Fprintf(w, name+"\t"+format+"\n", args...) }
			if describeManifests(*all, line); all.Problem == "" && len(all.Files) == 0 {
				line("manifests", "no files in %s", output.Printable(all.Dir))
			}
		})
		failed := slices.ContainsFunc(all.Files, func(f control.Manifest) bool { return f.State == control.Failed })
		if err == nil && (failed || all.Problem != "") {
			return cli.Exit("", 1)
		}
		return err
	})
}

func pruneManifests(c *cli.Context) error {
	var parameters []string
	if c.Bool("all") {
		parameters = append(parameters, control.All)
	}
	return withRunning(c, func(client *control.Client) error {
		strays, err := client.PruneManifests(c.Context, nil, parameters...)
		if err != nil {
			return err
		}
		show := func(w io.Writer) { strayTable(w, strays) }
		if c.Bool("dry-run") || len(strays) == 0 {
			return output.Show(c, strays, show)
		}
		if !c.Bool("yes") {
			w := tabwriter.NewWriter(c.App.ErrWriter, 0, 0, 3, ' ', 0)
			if show(w); w.Flush() != nil {
				return err
			}
			if err := output.Agree(c, fmt.Sprintf("deleting %s", objects(int64(len(strays)))), "nothing was deleted"); err != nil {
				return err
			}
		}
		done, err := client.PruneManifests(c.Context, strays, parameters...)
		if err != nil {
			return err
		}
		return showPruned(c, done)
	})
}

func objects(n int64) string {
	if n == 1 {
		return "1 object"
	}
	return fmt.Sprintf("%d objects", n)
}

// strayTable writes what would be deleted.
func strayTable(w io.Writer, strays []control.Stray) {
	if len(strays) == 0 {
		fmt.Fprintln(w, "every object of the server's is in a file: there is nothing to delete")
		return
	}
	fmt.Fprintln(w, "OBJECT\tGOES WITH IT")
	for _, s := range strays {
		with := "-"
		if s.With > 0 || s.AtLeast {
			with = objects(s.With)
		}
		if s.AtLeast {
			with = "at least " + with
		}
		if s.Problem != "" {
			with = "stays: " + s.Problem
		}
		fmt.Fprintf(w, "%s\t%s\n", output.Printable(s.Object), output.Printable(with))
	}
}

func showPruned(c *cli.Context, done []control.Stray) error {
	err := output.Show(c, done, func(w io.Writer) {
		for _, s := range done {
			fmt.Fprintf(w, "%s\t%s\n", output.Printable(s.Object), output.Printable(cmp.Or(s.Problem, "deleted")))
		}
	})
	stay := slices.DeleteFunc(slices.Clone(done), func(s control.Stray) bool { return s.Problem == "" })
	if err == nil && len(stay) > 0 {
		err = fmt.Errorf("%s could not be deleted", objects(int64(len(stay))))
	}
	return err
}
