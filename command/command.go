// Package command is the commands of karve: the shell around package server.
//
// This file has what they share: the exit code, how mistakes are told. Each command has a
// file: server.go, run.go, check.go, version.go, completion.go and envtestassets.go, and in
// packages of their own the commands that work on a data directory (datadir) and kubectl
// (kubectl). The options of a server and their defaults are in package options, with the
// configuration file and variables. Signals are in signals.go.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/datadir"
	"github.com/karve-k8s/karve/command/kubectl"
	"github.com/karve-k8s/karve/command/locale"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/envtest"
	"github.com/karve-k8s/karve/internal/version"
)

// Main is the program: what os.Args and the name it was started by ask for. It ends the
// process with an exit code if that is not 0.
func Main() {
	if locale.IsKubectl(os.Args[:1]) {
		kubectl.Run(os.Args[1:], kubectl.UsersFirst)
		return
	}
	if locale.IsKubectl(os.Args) { // its flags are not ours to parse
		kubectl.Run(os.Args[2:], kubectl.OursFirst)
		return
	}
	if name, run := envtest.Persona(os.Args[0]); run != nil {
		runPersona(name, run)
		return
	}
	ctx, stop := signalContext()
	defer stop()
	if err := run(ctx, os.Args, os.Stdout, os.Stderr); err != nil {
		printProblems(os.Stderr, "karve", err)
		os.Exit(exitCode(err))
	}
}

// runPersona ends with the exit code of the program that it is.
func runPersona(name string, run envtest.Program) {
	ctx, stop := signalContext()
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	if err != nil {
		printProblems(os.Stderr, name+" (karve)", err)
		os.Exit(1)
	}
}

// exitCode is 1, but for the commands whose answer it is.
func exitCode(err error) int {
	if coded := cli.ExitCoder(nil); errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return 1
}

// run is the whole command, but for kubectl: what it is given is all it knows
// of the process it runs in, apart from KARVE_… variables.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	app := &cli.App{
		Name:                      "karve",
		Usage:                     "a Kubernetes control plane in one process",
		Version:                   version.Full(),
		Writer:                    stdout,
		ErrWriter:                 stderr,
		HideVersion:               true, // there is a command
		DisableSliceFlagSeparator: true, // a comma may be part of a value
		EnableBashCompletion:      true,
		Suggest:                   true,
		// Errors are printed by main, once, in one form.
		ExitErrHandler: func(*cli.Context, error) {},
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return fmt.Errorf("%w (see karve help)", err)
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return fmt.Errorf("there is no command %q (see karve help)", c.Args().First())
			}
			return cli.ShowAppHelp(c)
		},
		Commands: []*cli.Command{
			serverCommand(),
			runCommand(),
			checkCommand(),
			datadir.Status(),
			kubectl.Command(),
			envtestAssetsCommand(),
			datadir.Kubeconfig(),
			datadir.Certs(),
			datadir.Datastore(),
			datadir.Snapshot(),
			datadir.Reset(),
			versionCommand(),
			completionCommand(),
		},
	}
	explainMistakes("karve", app.Commands)
	options.RefuseMisspelt(app.Commands)
	return app.RunContext(ctx, args)
}

// explainMistakes makes commands tell a mistake in a line, as `karve server` does,
// where cli would print the whole help: a wrong option, a word too many, no such
// command of a group. Those that explain themselves are left alone.
func explainMistakes(above string, commands []*cli.Command) {
	for _, command := range commands {
		name := above + " " + command.Name
		explainMistakes(name, command.Subcommands)
		if command.OnUsageError != nil || command.SkipFlagParsing {
			continue
		}
		command.OnUsageError = func(_ *cli.Context, err error, _ bool) error {
			return options.ExplainMistake(err, name, command.Flags)
		}
		switch action := command.Action; {
		case len(command.Subcommands) > 0:
			command.Action = func(c *cli.Context) error {
				if c.Args().Present() {
					return fmt.Errorf("there is no command %q (see %s --help)", name+" "+c.Args().First(), name)
				}
				return cli.ShowSubcommandHelp(c)
			}
		case command.ArgsUsage == "":
			command.Action = func(c *cli.Context) error {
				if c.Args().Present() {
					return fmt.Errorf("%s takes options only, got %q", name, c.Args().First())
				}
				return action(c)
			}
		}
	}
}
