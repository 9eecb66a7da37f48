package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/term"

	"github.com/karve-k8s/karve/command/install"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status"
	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/nodes/join"
)

const installNotes = `It takes the options of karve server, also from variables KARVE_NAME, and writes them to
the configuration file, where they stay. --name= (with no value) removes one; write a
switch as --name or --name=false. Run it again to change options. Options of the node
follow --with-node, which makes this machine a node of its own server, too.

For root it uses /usr/local/bin, /etc/karve/config.yaml, /var/lib/karve, a user "karve" and
a service of systemd or OpenRC; for other users ~/.local/bin, ~/.config/karve,
~/.local/share/karve and a unit of their systemd. An upgrade backs up the data to
<data-dir>.before-upgrade. If the new version does not become ready, the earlier one
returns, with its options and data.

--restore FILE rebuilds the cluster of a karve backup on a new machine before the first start,
with its configuration. A sealed one needs --passphrase-file or --identity, too.

KARVE_INSTALL_TIMEOUT is how many seconds the service may take to become ready (default:
300). KARVE_INSTALL_CHECK=no leaves out karve check.`

// installCommand is `karve install`, to which install.sh hands over.
func installCommand() *cli.Command {
	return &cli.Command{
		Name: "install", Usage: "install this program as a service, or upgrade the installed one",
		ArgsUsage: "[OPTION of karve server...]", SkipFlagParsing: true, Description: installNotes, Before: finish,
		BashComplete: func(c *cli.Context) {
			completeWith(&cli.Command{Name: "install", Flags: serverOptions()}, os.Args)(c)
		},
		Action: func(c *cli.Context) error {
			args := c.Args().Slice()
			switch {
			case len(args) > 0 && args[0] == "--print-unit": // for install.sh
				return printUnit(c, args[1:])
			case slices.Equal(args, []string{"--back-up"}): // for the scripts of packages
				i, err := newInstaller(c)
				if err != nil {
					return err
				}
				return i.BackUp(c.Context)
			}
			if own := beforeNode(args); slices.Contains(own, "--help") || slices.Contains(own, "-h") {
				options.WriteHelp(c.App.Writer, options.Purpose{
					Name: "karve install", Usage: c.Command.Usage, Args: "[--with-node [OPTION of a node...]]", Notes: installNotes, Options: serverOptions(),
				}, slices.Contains(own, "--all"))
				return nil
			}
			return runInstall(c, args, os.Environ())
		},
	}
}

// upgradeCommand is `karve upgrade`.
func upgradeCommand() *cli.Command {
	return &cli.Command{
		Name: "upgrade", Usage: "make this program the installed one, with the options that the configuration file has",
		Description: `It is karve install without options, for a machine where Karve is installed.`,
		Before:      finish,
		Action: func(c *cli.Context) error {
			place, err := install.FindPlace(c.Context)
			if err == nil {
				err = place.Installed()
			}
			if err != nil {
				return err
			}
			return runInstall(c, nil, nil)
		},
	}
}

// uninstallCommand is `karve uninstall`, which karve-uninstall.sh calls.
func uninstallCommand() *cli.Command {
	return &cli.Command{
		Name: "uninstall", Usage: "stop the service, and remove what karve install has installed",
		Description: `It keeps data and configuration, unless --purge is given or its question is answered
with yes. It removes nothing that Karve has not made, and names what stays.`,
		Flags:  []cli.Flag{&cli.BoolFlag{Name: "purge", Usage: "remove data and configuration, too, and do not ask"}},
		Before: finish, Action: uninstall,
	}
}

// beforeNode are the arguments for the server.
func beforeNode(args []string) []string {
	if at := slices.Index(args, "--with-node"); at >= 0 {
		return args[:at]
	}
	return args
}

// serverOptions are the options of karve server that an installation takes.
func serverOptions() []cli.Flag {
	return slices.DeleteFunc(options.Server(), func(f cli.Flag) bool { return f.Names()[0] == "config" })
}

func newInstaller(c *cli.Context) (*install.Installer, error) {
	setup.Umask()
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	place, err := install.FindPlace(c.Context)
	return &install.Installer{
		Place: place, Source: program, Version: "Karve " + version.Full(),
		Check: os.Getenv("KARVE_INSTALL_CHECK") != "no", Ready: status.Ready,
		Say:  saying(c.App.Writer, "karve: "),
		Warn: saying(c.App.ErrWriter, "karve: "),
	}, err
}

// saying returns what writes lines that begin with a prefix.
func saying(w io.Writer, prefix string) func(format string, args ...any) {
	return func(format string, args ...any) { fmt.Fprintf(w, prefix+format+"\n", args...) }
}

func runInstall(c *cli.Context, args, environ []string) error {
	known := install.Known{}
	for _, f := range options.Server() {
		if d, ok := f.(cli.DocGenerationFlag); ok {
			known[f.Names()[0]] = d.TakesValue()
		}
	}
	args, restore := takeRestore(args)
	given, nodeArgs, err := install.ReadOptions(args, environ, known)
	timeout, timeoutErr := installTimeout()
	if err := errors.Join(err, timeoutErr, wantedVersion()); err != nil {
		return errors.Join(err, errors.New("nothing was changed"))
	}
	i, err := newInstaller(c)
	if err != nil {
		return err
	}
	if nodeArgs != nil { // a node that is impossible is no reason to begin with the server
		if err := join.Supported(&join.Machine{}); err != nil {
			return err
		}
	}
	i.Timeout = timeout
	if restore != nil {
		i.Restore = func(ctx context.Context, config, dataDir, endpoint string) error {
			args := []string{"backup", "restore", "--config", config, "--data-dir", dataDir}
			if endpoint != "" {
				args = append(args, "--datastore-endpoint", endpoint)
			}
			cmd := exec.CommandContext(ctx, i.Source, append(args, restore...)...)
			cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, c.App.Writer, c.App.ErrWriter
			return cmd.Run()
		}
	}
	dataDir, err := i.Run(c.Context, given)
	if err != nil || nodeArgs == nil {
		return err
	}
	self := i.Program()
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "KARVE_") && !strings.HasPrefix(v, "KARVE_REQUIRE_SIGNATURE=")
	})
	return fmt.Errorf("%s: %w", self, syscall.Exec(self, append([]string{"karve", "node", "install", "--" + ownServer, dataDir}, nodeArgs...), env))
}

// takeRestore separates --restore FILE, and what opens a sealed one, from the options of the server. restore has the
// arguments of karve backup restore; it is nil without --restore. What has no value stays, and is refused as an option of the server.
func takeRestore(args []string) (rest, restore []string) {
	file, own := "", len(beforeNode(args))
	for i := 0; i < len(args); i++ {
		name, value, hasValue := strings.Cut(args[i], "=")
		ours := i < own && slices.Contains([]string{"--restore", "--passphrase-file", "--identity"}, name)
		if ours && !hasValue && i+1 < own {
			i++
			value = args[i]
		}
		switch {
		case !ours || value == "":
			rest = append(rest, args[i])
		case name == "--restore":
			file = value
		default:
			restore = append(restore, name+"="+value)
		}
	}
	if file == "" {
		return append(restore, rest...), nil
	}
	return rest, append(restore, file)
}

// installTimeout is how long the service may take to become ready.
func installTimeout() (time.Duration, error) {
	text, set := os.LookupEnv("KARVE_INSTALL_TIMEOUT")
	if !set || text == "" {
		return 300 * time.Second, nil
	}
	seconds, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		return 0, fmt.Errorf("KARVE_INSTALL_TIMEOUT %s: want a number of seconds", text)
	}
	return time.Duration(seconds) * time.Second, nil
}

// wantedVersion refuses to install another version than the one that the user asks for.
func wantedVersion() error {
	if wanted := os.Getenv("KARVE_VERSION"); wanted != "" && strings.TrimPrefix(wanted, "v") != strings.TrimPrefix(version.Full(), "v") {
		return fmt.Errorf("KARVE_VERSION %s: this is Karve %s: take the program of that version, or let install.sh download it", wanted, version.Full())
	}
	return nil
}

func printUnit(c *cli.Context, args []string) error {
	text := install.SystemUnit()
	if len(args) == 1 && args[0] == "user" {
		text = install.UserUnit("%h/.local/bin/karve", "%h/.config/karve/config.yaml")
	} else if len(args) > 0 {
		return fmt.Errorf("--print-unit takes nothing, or \"user\", got %q", args[0])
	}
	_, err := fmt.Fprint(c.App.Writer, text)
	return err
}

func uninstall(c *cli.Context) error {
	place, err := install.FindPlace(c.Context)
	if err != nil {
		return err
	}
	r := &install.Remover{
		Place: place, Purge: c.Bool("purge"), Say: saying(c.App.Writer, ""), Warn: saying(c.App.ErrWriter, ""),
	}
	if !place.User {
		r.Node = func(ctx context.Context) (bool, error) {
			return join.UninstallWithServer(ctx, &join.Machine{}, nodeOptions(c).Say)
		}
	}
	if !r.Purge && term.IsTerminal(int(os.Stdin.Fd())) {
		r.Purge = output.Yes(c, fmt.Sprintf("Remove the data in %s and the configuration as well?", r.Target()))
	}
	return r.Run(c.Context)
}
