// Package command is the commands of karve: the shell around package server.
//
// This file has what they share: the exit code, how mistakes are told. Signals are in
// signals.go, the options of `karve server` in serverflags.go, the configuration file in
// configfile.go, variables in variables.go, the small commands in commands.go, run.go, check.go, status.go,
// datastorecommand.go, snapshotcommand.go, envtestassets.go and kubectl.go; faces.go is
// what karve is under the names etcd and kube-apiserver.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/locale"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server"
)

// Main is the program: what os.Args and the name it was started by ask for. It ends the
// process with an exit code if that is not 0.
func Main() {
	if locale.IsKubectl(os.Args[:1]) {
		runKubectl(os.Args[1:], userKubeconfigFirst)
		return
	}
	if locale.IsKubectl(os.Args) { // its flags are not ours to parse
		runKubectl(os.Args[2:], ourKubeconfigFirst)
		return
	}
	if name, run := face(os.Args[0]); run != nil {
		runFace(name, run)
		return
	}
	ctx, stop := signalContext()
	defer stop()
	if err := run(ctx, os.Args, os.Stdout, os.Stderr); err != nil {
		printProblems(os.Stderr, "karve", err)
		os.Exit(exitCode(err))
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
			statusCommand(),
			kubectlCommand(),
			envtestAssetsCommand(),
			kubeconfigCommand(),
			certsCommand(),
			datastoreCommand(),
			snapshotCommand(),
			resetCommand(),
			versionCommand(),
			completionCommand(),
		},
	}
	explainMistakes("karve", app.Commands)
	refuseMisspelt(app.Commands)
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
			return explainUsage(err, name, command.Flags)
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

// serverCommand is `karve server`.
func serverCommand() *cli.Command {
	flags := serverFlags()
	return &cli.Command{
		Name:               "server",
		Usage:              "run the control plane until it is told to stop",
		CustomHelpTemplate: helpOf(flags, "karve server: run the control plane until it is told to stop\n"),
		Flags:              flags,
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return explainUsage(err, "karve server", flags)
		},
		Action: func(c *cli.Context) error {
			config, err := readConfig(c)
			if err != nil { // with what the server would refuse: all at once
				return errors.Join(err, config.Validate(c.Context))
			}
			config.Ready = func(info server.Info) { greet(c.App.Writer, info) }
			ctx := c.Context
			if c.Bool("stop-with-stdin") {
				var end context.CancelFunc
				ctx, end = context.WithCancel(ctx)
				defer end()
				go func() {
					_, _ = io.Copy(io.Discard, os.Stdin)
					end()
				}()
			}
			config.ShortenGoodbyes()
			return ownership.Explain(server.Run(ctx, config), config.DataDir)
		},
	}
}

// readConfig is readOptions for a command that takes nothing else.
func readConfig(c *cli.Context) (server.Config, error) {
	var surplus error
	if c.Args().Present() {
		surplus = fmt.Errorf("karve %s takes options only, got %q", c.Command.Name, c.Args().First())
	}
	config, err := readOptions(c, defaultConfigFile, c.App.ErrWriter)
	return config, errors.Join(surplus, err)
}

// readOptions makes the server's configuration of options, variables and the
// configuration file, which is usual if no other is named; the server logs to log.
// The error joins all that is wrong with them.
func readOptions(c *cli.Context, usual string, log io.Writer) (server.Config, error) {
	problems := []error{readConfigFile(c, usual)}
	config, err := serverConfig(c)
	problems = append(problems, err)
	if config.Log, err = logbridge.New(log, c.String("log-format"), c.String("log-level")); err != nil {
		problems = append(problems, err)
		config.Log, _ = logbridge.New(log, "text", "error") // these are valid
	}
	logbridge.Install(config.Log)
	return config, errors.Join(problems...)
}

// greet is the one line a successful start prints.
func greet(w io.Writer, info server.Info) {
	plain := ""
	if info.InsecureURL != "" {
		plain = " and " + info.InsecureURL
	}
	var slowest []string
	for _, part := range info.Slowest {
		slowest = append(slowest, fmt.Sprintf("%s %v", part.Part, part.Took.Round(time.Millisecond)))
	}
	fmt.Fprintf(w, "karve is ready after %v (%s) at %s%s. Next: export KUBECONFIG=%s; kubectl get namespaces\n",
		info.Took.Round(time.Millisecond), strings.Join(slowest, ", "), info.URL, plain, info.Kubeconfig)
}

// printProblems prints an error of a program, one line for each problem that was joined
// in it.
func printProblems(w io.Writer, program string, err error) {
	for _, problem := range flatten(err) {
		for line := range strings.Lines(problem.Error()) {
			fmt.Fprintf(w, "%s: %s\n", program, strings.TrimSpace(line))
		}
	}
}

// flatten undoes errors.Join, and only that: an error that wraps two others has
// a sentence of its own.
func flatten(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	if errors.Join(joined.Unwrap()...).Error() != err.Error() {
		return []error{err}
	}
	return all
}
