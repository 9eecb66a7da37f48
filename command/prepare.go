package command

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/keys"
	"github.com/karve-k8s/karve/command/kubectl"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/server/flags"
)

// init takes away cli's own --help, which knows one text for each command; prepare adds another.
func init() { cli.HelpFlag = nil }

// errAnswered ends a command whose question --help or --version has answered.
var errAnswered = errors.New("answered")

// prepare gives all commands what they share: --help, completion, and errors of one line for
// a wrong option, an argument too many or a command that does not exist.
func prepare(app *cli.App, args []string) {
	root := &cli.Command{Name: app.Name, Usage: app.Usage, Subcommands: app.Commands, Flags: []cli.Flag{
		helpFlag(),
		&cli.BoolFlag{Name: "version", Aliases: []string{"v"}, Usage: "print the version"},
	}}
	app.Flags = root.Flags
	app.BashComplete = completeWith(root, args)
	app.OnUsageError = func(_ *cli.Context, err error, _ bool) error { return explainRoot(err, root.Flags) }
	app.Before = func(c *cli.Context) error {
		switch {
		case c.Bool("help"):
			writeRootHelp(c.App.Writer, root.Subcommands)
		case c.Bool("version"):
			if err := printVersion(c.App.Writer); err != nil {
				return err
			}
		default:
			return nil
		}
		return errAnswered
	}
	app.Action = func(c *cli.Context) error {
		if c.Args().Present() {
			return noRootCommand(c.Args().Slice(), root.Subcommands)
		}
		writeRootHelp(c.App.Writer, root.Subcommands)
		return nil
	}
	// Variables are checked before all else, but not if a command only shows its help.
	options.RefuseMisspelt(app.Commands)
	for _, command := range app.Commands {
		prepareCommand(app.Name+" "+command.Name, command, args)
	}
}

func prepareCommand(name string, command *cli.Command, args []string) {
	for _, sub := range command.Subcommands {
		prepareCommand(name+" "+sub.Name, sub, args)
	}
	if command.SkipFlagParsing {
		return
	}
	help := purposeOf(name, command)
	command.HideHelp = true
	command.Flags = append(command.Flags, helpFlag())
	if help.HasMore() {
		command.Flags = append(command.Flags, &cli.BoolFlag{Name: "all", Usage: "with --help: show all options"})
	}
	known := command.Flags
	command.OnUsageError = func(_ *cli.Context, err error, _ bool) error {
		// An option after a command that does not exist is parsed as one of the command above.
		if at := len(strings.Fields(name)); len(command.Subcommands) > 0 && len(args) > at && !strings.HasPrefix(args[at], "-") {
			return noCommand(name, args[at], command.Subcommands)
		}
		return options.ExplainMistake(err, name, known)
	}
	command.BashComplete = completeWith(command, args)

	before := command.Before
	command.Before = func(c *cli.Context) error {
		if c.Bool("help") {
			options.WriteHelp(c.App.Writer, help, c.Bool("all"))
			return errAnswered
		}
		// status has an option of that name, with a meaning of its own.
		if help.HasMore() && c.Bool("all") {
			return fmt.Errorf("--all belongs to --help: %s --help --all", name)
		}
		if err := options.CheckValues(c); err != nil {
			return err
		}
		if len(command.Subcommands) == 0 && !options.Collects(command) {
			if err := checkArguments(name, command.ArgsUsage, c.Args().Slice()); err != nil {
				return err
			}
		}
		if before != nil {
			if err := before(c); err != nil {
				return err
			}
		}
		return options.CheckDataDir(c)
	}
	if len(command.Subcommands) > 0 {
		command.Action = func(c *cli.Context) error {
			if c.Args().Present() {
				return noCommand(name, c.Args().First(), command.Subcommands)
			}
			options.WriteHelp(c.App.Writer, help, false)
			return nil
		}
	}
}

// checkArguments returns an error if a command, whose usage names its arguments, has others.
func checkArguments(name, usage string, args []string) error {
	what := strings.Trim(usage, "[]")
	switch {
	case usage == "" && len(args) > 0:
		return fmt.Errorf("%s takes options only, got %q", name, keys.Shown(args[0]))
	case usage == "" || strings.ContainsAny(what, " .") && (len(args) > 0 || what != usage):
		return nil
	case strings.ContainsAny(what, " ."):
		return fmt.Errorf("%s needs %s", name, usage)
	case len(args) > 1 || what == usage && len(args) == 0:
		return fmt.Errorf("%s takes one %s, got %d arguments", name, what, len(args))
	case len(args) == 1 && args[0] == "":
		return fmt.Errorf("%s takes one %s, got an empty argument", name, what)
	}
	return nil
}

// noCommand is the error for a command that does not exist, with the nearest that does.
func noCommand(above, name string, commands []*cli.Command) error {
	if hint := otherwise[strings.TrimPrefix(above+" "+name, "karve ")]; hint != "" {
		return fmt.Errorf("there is no command %q: %s", above+" "+name, hint)
	}
	var names []string
	for _, c := range commands {
		names = append(names, c.Name)
	}
	name = keys.Shown(name)
	if near := flags.Nearest(name, names); near != "" {
		return fmt.Errorf("there is no command %q; did you mean %s %s?", above+" "+name, above, near)
	}
	return fmt.Errorf("there is no command %q (see %s --help)", above+" "+name, above)
}

// otherwise are commands of similar programs and of earlier releases, and what to do in their place.
var otherwise = map[string]string{
	"start":          "karve server starts a cluster",
	"up":             "karve server starts a cluster",
	"init":           "karve server starts a cluster",
	"create cluster": "karve server starts a cluster, and karve run -- COMMAND one for a command",
	"stop":           "Ctrl-C ends karve server, and systemctl stop karve the service",
	"down":           "Ctrl-C ends karve server, and systemctl stop karve the service",
	"restart":        "end karve server with Ctrl-C and start it again; of the service: systemctl restart karve",
	"delete cluster": "stop the server, and remove its data directory, which karve status names",
	"agent":          "karve node join makes this machine a node",
	"join":           "karve node join makes this machine a node",
	"addons list":    "karve status shows the files of addons, and what the cluster lacks",
	"addons delete":  "remove the addon's file from addons/ in the directory of the manifests, and run karve manifests prune",
}

// noRootCommand is the error for a command that karve itself does not have. It may be one of kubectl's, or of a similar program.
func noRootCommand(args []string, commands []*cli.Command) error {
	for _, words := range []int{min(2, len(args)), 1} {
		if hint := otherwise[strings.Join(args[:words], " ")]; hint != "" {
			return fmt.Errorf("there is no command %q: %s", "karve "+strings.Join(args[:words], " "), hint)
		}
	}
	if kubectl.Has(args[0]) {
		return fmt.Errorf("there is no command %q; did you mean karve kubectl %s?", "karve "+args[0], args[0])
	}
	return noCommand("karve", args[0], commands)
}

// explainRoot is the error for a wrong option before the command. Most often it is one of a
// command.
func explainRoot(err error, known []cli.Flag) error {
	if name, ok := options.Undefined(err); ok && slices.Contains(options.Names(options.Server()), name) {
		return fmt.Errorf("--%s is an option of a command: karve server --%s …", name, name)
	}
	return options.ExplainMistake(err, "karve", known)
}

func helpFlag() cli.Flag {
	return &cli.BoolFlag{Name: "help", Aliases: []string{"h"}, Usage: "show this help"}
}

func purposeOf(name string, c *cli.Command) options.Purpose {
	return options.Purpose{Name: name, Usage: c.Usage, Args: c.ArgsUsage, Notes: c.Description, Commands: c.Subcommands, Options: slices.Clone(c.Flags)}
}

func writeRootHelp(w io.Writer, commands []*cli.Command) {
	options.WriteHelp(w, options.Purpose{
		Name:  "karve",
		Usage: "Karve is a Kubernetes control plane in one process",
		Notes: `karve server starts a cluster, and karve kubectl get namespaces uses it.
karve COMMAND --help explains a command. karve --version prints the version.`,
		Commands: commands,
	}, false)
}

// helpCommand is `karve help COMMAND...`, which is `karve COMMAND... --help`.
func helpCommand() *cli.Command {
	return &cli.Command{
		Name:            "help",
		Usage:           "show the help of karve or of a command",
		ArgsUsage:       "[COMMAND...]",
		SkipFlagParsing: true,
		Action: func(c *cli.Context) error {
			return run(c.Context, slices.Concat([]string{"karve"}, c.Args().Slice(), []string{"--help"}), c.App.Writer, c.App.ErrWriter)
		},
	}
}
