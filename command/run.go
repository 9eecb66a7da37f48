package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server"
)

// The exit codes of `karve run` beside those of the command, as in shells.
const (
	exitNotExecutable = 126
	exitNotFound      = 127
	exitSignal        = 128 // and the signal's number
)

// settleAfter is the default of --settle-after for `karve run`: most commands end earlier.
const settleAfter = 10 * time.Second

// farewell is how long the command may take to end if the server has ended before it.
const farewell = 10 * time.Second

// runCommand is `karve run`.
func runCommand() *cli.Command {
	return &cli.Command{
		Name:      "run",
		Usage:     "run a command with a cluster of its own, which ends with it",
		ArgsUsage: "[-- COMMAND [ARGUMENT...]]",
		Description: `The cluster is in memory, in a temporary directory, and on a free port of this
machine. The command finds its kubeconfig in KUBECONFIG and, if no kubectl is
installed, one in its PATH. In KARVE_DATA_DIR, the commands of karve find the server.
karve exits with the command's exit code, and prints the server's log if that is not
0. With --data-dir the cluster is kept there. The configuration file of an installed
server is not read. Without a command, on a terminal, karve runs the shell of SHELL.

karve passes SIGINT, SIGTERM and SIGHUP on to the command, which gets Ctrl-C from the
terminal. A second SIGINT or SIGTERM, a second or more after the first, ends karve
immediately, as kill -9 does: the next karve run then removes the temporary directory.`,
		Flags: runFlags(),
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return runWithCluster(c, c.Args().Slice(), false)
			}
			if !term.IsTerminal(int(os.Stdin.Fd())) || !term.IsTerminal(int(os.Stderr.Fd())) { // as shells decide whether they are interactive
				_, err := options.ReadFrom(c, "", io.Discard)
				return errors.Join(err, errors.New("there is no command to run: want karve run -- COMMAND, or a terminal for a shell"))
			}
			return runWithCluster(c, []string{userShell()}, true)
		},
	}
}

// runFlags are the options of a server. Some have other defaults, so that the cluster shares nothing
// with a server that is installed on the machine.
func runFlags() []cli.Flag {
	defaults := map[string]string{"data-dir": "", "config": "", "bind-address": "127.0.0.1", "datastore-endpoint": ""}
	usages := map[string]string{
		"data-dir":           "`DIR` in which the cluster is kept (default: a temporary one)",
		"config":             "`FILE` with options in YAML",
		"bind-address":       "`IP` address of the secure listener",
		"datastore-endpoint": "`URL` of the datastore, as of karve server (default: memory:// without --data-dir)",
	}
	list := slices.DeleteFunc(options.Server(), func(f cli.Flag) bool { return f.Names()[0] == "stop-with-stdin" })
	for _, f := range list {
		switch f := f.(type) {
		case *cli.StringFlag:
			if value, ok := defaults[f.Name]; ok {
				f.Value, f.Usage, f.EnvVars = value, usages[f.Name], nil
			}
		case *cli.DurationFlag:
			if f.Name == "settle-after" {
				f.Value, f.EnvVars = settleAfter, nil
			}
		case *cli.IntFlag:
			if f.Name == "secure-port" || f.Name == "insecure-port" {
				f.Value, f.EnvVars = 0, nil
			}
		}
	}
	return list
}

// runWithCluster starts the cluster, runs the command, and ends both. The command is args, which may be
// an interactive shell.
func runWithCluster(c *cli.Context, args []string, shell bool) error {
	temp, err := runDir()
	if err != nil {
		return err
	}
	dir := temp.Dir()
	defer func() { // the exit code is the command's
		if err := temp.Remove(); err != nil {
			fmt.Fprintf(c.App.ErrWriter, "karve: the cluster's temporary directory could not be removed: %v; remove %s\n", err, dir)
		}
	}()
	log, err := os.OpenFile(filepath.Join(dir, "server.log"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()

	config, err := runConfig(c, dir, log)
	if err != nil {
		return errors.Join(err, config.Validate(c.Context))
	}

	// A signal ends the command, and the end of the command ends the server.
	config.RequireReady = true
	up := make(chan server.Info, 1)
	progress := config.Log
	if term.IsTerminal(int(os.Stderr.Fd())) { // somebody waits, and does not see the server's log
		progress, _ = logbridge.New(os.Stderr, "text", "info") // these are valid
	}
	config.Progress = logProgress(progress)
	config.Ready = func(info server.Info) { up <- info }
	life, end := context.WithCancel(context.WithoutCancel(c.Context))
	defer end()
	ended := make(chan error, 1)
	go func() { ended <- server.Run(life, config) }()

	var failed error
	select {
	case info := <-up:
		if shell {
			after := "exit removes the cluster"
			if c.String("data-dir") != "" {
				after = "exit stops the cluster, which stays in " + config.DataDir
			}
			fmt.Fprintf(c.App.ErrWriter, "karve: %s has a cluster of its own: KUBECONFIG is set, and %s\n", args[0], after)
		}
		failed = runBeside(c, args, info.Kubeconfig, dir, ended)
		end()
	case <-c.Context.Done():
		failed = cli.Exit("", exitSignal+signalNumber(c.Context))
		end()
	case err := <-ended:
		ended <- err
	}
	if err := <-ended; err != nil {
		failed = errors.Join(err, failed)
	}
	// A shell ends with the code of its last command, which says nothing about the cluster.
	if _, code := failed.(cli.ExitCoder); failed != nil && !(shell && code) {
		showLog(c.App.ErrWriter, log)
	}
	return failed
}

// runConfig is the configuration of a cluster in dir, unless the user names another data directory.
// The server's log is only shown if something fails.
func runConfig(c *cli.Context, dir string, log io.Writer) (server.Config, error) {
	config, err := options.ReadFrom(c, "", log)
	if config.DataDir == "" {
		config.DataDir = filepath.Join(dir, "data")
		if config.DatastoreEndpoint == "" {
			config.DatastoreEndpoint = "memory://"
		}
	}
	return config, err
}

// runBeside runs the user's command. It returns nil if that succeeds, and otherwise the error to exit
// with. If the server ends first, it ends the command.
func runBeside(c *cli.Context, args []string, kubeconfig, dir string, serverEnded chan error) error {
	path, env, err := withKubectl(args[0], filepath.Join(dir, "bin"))
	if err != nil {
		code := exitNotExecutable
		if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			code = exitNotFound
		}
		return cli.Exit(err.Error(), code)
	}
	cmd := exec.Command(path, args[1:]...)
	cmd.Args[0] = args[0]
	cmd.Env = append(env, "KUBECONFIG="+kubeconfig, "KARVE_DATA_DIR="+filepath.Dir(kubeconfig))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, c.App.Writer, c.App.ErrWriter
	witness := newWitness()
	defer witness.end(c.Context)
	if err := cmd.Start(); err != nil {
		return cli.Exit(err.Error(), exitNotExecutable)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	select {
	case err = <-done:
	case <-c.Context.Done():
		if !witness.end(c.Context) {
			cmd.Process.Signal(signalOf(c.Context))
		}
		err = <-done
	case gone := <-serverEnded:
		serverEnded <- gone
		stop := time.AfterFunc(farewell, func() { cmd.Process.Kill() })
		terminate(cmd.Process)
		<-done
		stop.Stop()
		return fmt.Errorf("the server ended before %s", args[0])
	}
	if code := exitCodeOf(cmd.ProcessState); code != 0 {
		return cli.Exit("", code)
	}
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) { // of copying its output
		return err
	}
	return nil
}

// withKubectl finds a program, and makes its environment. If there is no kubectl in the PATH, this
// program is added as kubectl, in bin.
func withKubectl(name, bin string) (path string, env []string, err error) {
	env = slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "KUBECONFIG=") || strings.HasPrefix(v, "KARVE_DATA_DIR=")
	})
	self, err := os.Executable()
	if err != nil {
		return "", nil, err
	}
	kubectl := filepath.Join(bin, "kubectl")
	if _, missing := exec.LookPath("kubectl"); missing != nil {
		if err := os.Mkdir(bin, 0o700); err != nil {
			return "", nil, err
		}
		// On systems where not every user may create links, the command finds no kubectl.
		if os.Symlink(self, kubectl) == nil {
			if before := os.Getenv("PATH"); before != "" { // an empty entry is the working directory
				bin = before + string(filepath.ListSeparator) + bin
			}
			env = append(env, "PATH="+bin)
			if name == "kubectl" {
				return kubectl, env, nil
			}
		}
	}
	path, err = exec.LookPath(name)
	return path, env, err
}

// logShown is how many bytes of the server's log are shown: the last ones.
const logShown = 256 << 10

func showLog(w io.Writer, log *os.File) {
	size, err := log.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		return
	}
	fmt.Fprintln(w, "karve: the server's log:")
	io.Copy(w, io.NewSectionReader(log, max(0, size-logShown), logShown))
}

// runDir creates a temporary directory for a cluster, whose CA keys are in it. It first removes the
// directories that processes have left which were killed, or ended by a second signal.
func runDir() (*directory.TempDir, error) {
	if err := options.CheckListed(os.TempDir()); err != nil {
		return nil, fmt.Errorf("the temporary directory (TMPDIR): %w", err)
	}
	temp, err := directory.NewPrivate("karve-run-")
	if err != nil {
		err = ownership.ExplainTemp(err)
	}
	return temp, err
}
