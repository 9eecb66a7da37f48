// Package command has the commands of karve: the shell around package server.
//
// This file has the list of commands, prepare.go what they share, signals.go the signals. Commands are here, or in the room of their
// subject: status, backup, keys, install and kubectl. The options of a server and their defaults are in package options.
package command

import (
	"context"
	"errors"
	"io"
	"os"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/backup"
	"github.com/karve-k8s/karve/command/keys"
	"github.com/karve-k8s/karve/command/kubectl"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/status"
	"github.com/karve-k8s/karve/envtest"
	"github.com/karve-k8s/karve/internal/locale"
	"github.com/karve-k8s/karve/internal/version"
)

// Main is the program: it runs what os.Args and the name of the program ask for. It ends the process
// if the exit code is not 0.
func Main() {
	if locale.IsKubectl(os.Args[:1]) {
		kubectlSetup().Run(os.Args[1:], kubectl.UsersFirst)
		return
	}
	if locale.IsKubectl(os.Args) { // kubectl parses its flags itself
		kubectlSetup().Run(os.Args[2:], kubectl.OursFirst)
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

func kubectlSetup() kubectl.Setup {
	return kubectl.Setup{
		UsualDirs:      options.UsualDataDirs(),
		CheckListed:    options.CheckListed,
		CheckVariables: func(names []string) error { return options.CheckVariables(os.Environ(), names) },
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

// exitCode is 1, except for commands that define exit codes.
func exitCode(err error) int {
	if coded := cli.ExitCoder(nil); errors.As(err, &coded) {
		return coded.ExitCode()
	}
	return 1
}

// run is the whole program except kubectl. It takes everything from its arguments, apart from
// KARVE_… variables.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	if asksBehindDashes(args) { // the shell proposes files
		return nil
	}
	app := newApp(args, stdout, stderr)
	err := app.RunContext(ctx, arrange(app, args))
	if errors.Is(err, errAnswered) {
		return nil
	}
	return err
}

// newApp is karve with all its commands.
func newApp(args []string, stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:                      "karve",
		Usage:                     "a Kubernetes control plane in one process",
		Version:                   version.Full(),
		Writer:                    stdout,
		ErrWriter:                 stderr,
		HideHelp:                  true, // as HideVersion: prepare adds options of its own
		HideVersion:               true,
		DisableSliceFlagSeparator: true, // a comma may be part of a value
		EnableBashCompletion:      true,
		// Errors are printed by Main, once, in one form.
		ExitErrHandler: func(*cli.Context, error) {},
		Commands: []*cli.Command{
			inCategory(cluster, serverCommand()),
			inCategory(cluster, runCommand()),
			inCategory(cluster, status.Status()),
			inCategory(cluster, status.Wait()),
			inCategory(cluster, kubectl.Command(kubectlSetup())),
			inCategory(cluster, keys.Kubeconfig()),
			inCategory(cluster, keys.Token()),
			inCategory(cluster, keys.ClusterToken()),
			inCategory(cluster, nodeCommand()),
			inCategory(cluster, installCommand()),
			inCategory(cluster, upgradeCommand()),
			inCategory(cluster, uninstallCommand()),
			inCategory(cluster, addonsCommand()),
			inCategory(cluster, status.Manifests()),
			inCategory(data, backup.Backup()),
			inCategory(data, backup.Snapshot()),
			inCategory(data, backup.Reset()),
			inCategory(data, backup.Datastore()),
			inCategory(data, keys.Certs()),
			inCategory(data, keys.Secrets()),
			inCategory(data, keys.SSH()),
			inCategory(tools, checkCommand()),
			inCategory(tools, supportCommand()),
			inCategory(tools, envtestAssetsCommand()),
			inCategory(tools, completionCommand()),
			inCategory(tools, versionCommand()),
			inCategory(tools, helpCommand()),
		},
	}
	prepare(app, args)
	return app
}

// The categories of commands in the help.
const (
	cluster = "A CLUSTER"
	data    = "ITS DATA"
	tools   = "TOOLS"
)

func inCategory(category string, c *cli.Command) *cli.Command {
	c.Category = category
	return c
}
