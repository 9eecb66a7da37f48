package command

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/install"
	"github.com/karve-k8s/karve/command/keys"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/nodes/join"
)

// ownServer is the option with which `karve install --with-node` calls this command.
const ownServer = "own-server"

// nodeInstallCommand is `karve node install`, to which install.sh hands over. Its options are those of a join, and others.
func nodeInstallCommand(joining []cli.Flag) *cli.Command {
	return &cli.Command{
		Name:  "install",
		Usage: "install this program, and make the machine a node, or upgrade the one that it is; needs root",
		Description: `install.sh calls it. This program becomes ` + join.ProgramFile + `, and
` + join.UninstallFile + ` removes everything. Then it joins as "karve node join"
does. On a machine that is a node, it upgrades the kubelet unless --server or a token is given.`,
		Flags: append(joining,
			&cli.StringFlag{Name: "token", EnvVars: []string{"KARVE_TOKEN"}, Usage: "the bootstrap `TOKEN`. Other users can see a command line: prefer the variable, or --token-file"},
			&cli.StringFlag{Name: ownServer, Usage: "the data `DIR` of the server on this machine, instead of --server, a token and --ca-hash"},
		),
		Action: installNode,
	}
}

func installNode(c *cli.Context) error {
	setup.Umask()
	program, err := os.Executable()
	if err != nil {
		return err
	}
	if err := useServers(program); err != nil {
		return err
	}
	if err := install.NotPackaged(c.Context); err != nil {
		return err
	}
	o, err := joinOptions(c)
	if err != nil {
		return err
	}
	o.Token = c.String("token")
	os.Unsetenv("KARVE_TOKEN") // the programs that this one calls need none
	if file := c.String("token-file"); file != "" {
		if o.Token, err = readToken(file, c.App.Reader); err != nil {
			return err
		}
	}
	m := &join.Machine{}
	dir, done := c.String(ownServer), func() {}
	if dir != "" {
		done, err = joinOwn(c, m, dir, &o)
	}
	if err == nil {
		err = join.Install(c.Context, m, program, o)
		done()
	}
	if err != nil && dir != "" {
		err = fmt.Errorf("%w. The server is installed and ready, but this machine is not its node: run the same command again when that is repaired", err)
	}
	if err != nil {
		return err
	}
	o.Say("this machine is a node: `karve node status` shows it, and %s removes it", join.UninstallFile)
	return nil
}

// joinOwn fills in the options with which this machine joins the server on it, with a token for that alone. The
// options of a join are ignored if the machine is its node already, because the same command upgrades; and there is
// no token, unless the server does not accept the node's certificate any more.
func joinOwn(c *cli.Context, m *join.Machine, dir string, o *join.Options) (done func(), err error) {
	client, config, err := servers.Client(dir)
	if err != nil {
		return nil, err
	}
	joined, _, err := join.Joined(m)
	if err != nil {
		return nil, err
	}
	o.Server, o.OwnServer = config.Host, true
	if joined {
		for _, name := range []string{"no-network", "node-name", "node-ip", "pod-cidr", "ssh-user", "node-labels", "node-taints"} {
			if c.IsSet(name) {
				o.Warn("--%s was not looked at, because this machine is a node already. To change it: %s, then the same command again", name, join.UninstallFile)
			}
		}
		o.NoNetwork, o.Name, o.IP, o.PodCIDR, o.SSHUser, o.Labels, o.Taints = false, "", "", "", "", "", ""
		if join.Accepted(c.Context, m, o.Server) {
			return func() {}, nil
		}
	}
	for _, name := range []certs.Name{certs.ServerCA, certs.ClientCA} {
		o.CAFiles = append(o.CAFiles, certs.File(filepath.Join(dir, "certs"), name))
	}
	text, remove, err := keys.TemporaryToken(c.Context, client, 15*time.Minute, "for karve install --with-node")
	if err != nil {
		return nil, err
	}
	o.Token = text
	return func() {
		if err := remove(); err != nil {
			o.Warn("the token that was used could not be deleted, and expires in 15 minutes: %v", err)
		}
	}, nil
}

// useServers goes on with the installed program if that is a server's, because that is replaced only with a backup
// and a way back. It returns if this is that program, or there is no server.
func useServers(program string) error {
	installed, err := os.Stat(join.ProgramFile)
	if err != nil || !join.HasServer(&join.Machine{}) {
		return nil
	}
	if own, err := os.Stat(program); err != nil || os.SameFile(own, installed) {
		return err
	}
	if err := exec.Command(join.ProgramFile, "node", "install", "--help").Run(); err != nil {
		return errors.New("the server on this machine is too old to make a node: upgrade it first, by install.sh without \"node\"")
	}
	return fmt.Errorf("%s: %w", join.ProgramFile, syscall.Exec(join.ProgramFile, append([]string{"karve"}, os.Args[1:]...), os.Environ()))
}

func uninstallNode(c *cli.Context) error {
	o := nodeOptions(c)
	if c.Bool("with-server") {
		_, err := join.UninstallWithServer(c.Context, &join.Machine{}, o.Say)
		return err
	}
	if err := join.Uninstall(c.Context, &join.Machine{}, o.Say); err != nil {
		return err
	}
	o.Say("this machine is no node any more. `karve kubectl delete node` on the server removes the Node object")
	return nil
}
