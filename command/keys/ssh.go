package keys

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/nodes/tunnels"
)

// SSH is `karve ssh`.
func SSH() *cli.Command {
	return &cli.Command{
		Name:  "ssh",
		Usage: "show the key with which the server reaches nodes through SSH, and forget the keys of nodes",
		Subcommands: []*cli.Command{{
			Name:   "public-key",
			Usage:  "print the line for the authorized_keys file of --ssh-user on the nodes",
			Flags:  []cli.Flag{options.Config(), options.DataDir(), options.SSHKeyFile()},
			Before: options.FindDataDir,
			Action: options.AsOwner(printPublicKey),
		}, {
			Name:      "forget",
			Usage:     "remove the pinned host key of a machine that was installed again",
			ArgsUsage: "ADDRESS",
			Flags:     []cli.Flag{options.Config(), options.DataDir(), options.SSHKnownHosts()},
			Before:    options.FindDataDir,
			Action:    forgetHostKey,
		}},
	}
}

// forgetHostKey acts as the owner of the directory, so that the server can read and write the file afterwards.
func forgetHostKey(c *cli.Context) error {
	path := options.Absolute(cmp.Or(c.String("ssh-known-hosts"), filepath.Join(c.String("data-dir"), "ssh", "known_hosts")))
	return ownership.Act(filepath.Dir(path), func() error {
		keys := &tunnels.HostKeys{Path: path}
		return keys.Forget(c.Args().First())
	})
}

func printPublicKey(c *cli.Context) error {
	path := cmp.Or(c.String("ssh-keyfile"), tunnels.KeyPath(c.String("data-dir")))
	signer, err := tunnels.ReadKey(path)
	switch {
	case errors.Is(err, os.ErrNotExist) && c.String("ssh-keyfile") == "":
		return fmt.Errorf("%s does not exist: a server with --ssh-user makes it when it starts", path)
	case err != nil:
		return err
	}
	host, err := os.Hostname()
	if err != nil {
		host = "server"
	}
	_, err = fmt.Fprintln(c.App.Writer, tunnels.AuthorizedKey(signer, "karve@"+host))
	return err
}
