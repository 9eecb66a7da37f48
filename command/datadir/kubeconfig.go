package datadir

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/servers"
)

// Kubeconfig is `karve kubeconfig`.
func Kubeconfig() *cli.Command {
	return &cli.Command{
		Name:  "kubeconfig",
		Usage: "print the admin's kubeconfig, or merge it into your own",
		Description: `With --server, or if the server was started with --advertise-url, the kubeconfig is
for another machine. A warning says if the certificate of the server is not valid
for that name or address.`,
		Flags: []cli.Flag{
			options.Config(), options.DataDir(),
			&cli.StringFlag{Name: "server", Usage: "`URL` or HOST[:PORT] of the server as the other machine reaches it. " + advertised + " is its --advertise-url or, without that, the address that the running server advertises to nodes. (default: its --advertise-url, else this machine's own address)"},
			&cli.BoolFlag{Name: "merge", Usage: "merge it into the first file of KUBECONFIG, or ~/.kube/config"},
			&cli.StringFlag{Name: "into", Usage: "`FILE` to merge into instead"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the context, cluster and user there (default: " + certs.DefaultContext + ")"},
			&cli.BoolFlag{Name: "overwrite", Usage: "replace entries of that name, even if they are of another cluster"},
			&cli.BoolFlag{Name: "set-current", Usage: "make it the current context, even if there is another"},
		},
		Before: options.ReadDataDir,
		Action: func(c *cli.Context) error {
			if c.String("into") == "-" {
				return errors.New("--into -: want a file to merge into; without --into and --merge, the kubeconfig is printed")
			}
			path := filepath.Join(c.String("data-dir"), "admin.kubeconfig")
			text, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return servers.NoKubeconfig(c.String("data-dir"))
			} else if err != nil {
				return err
			}
			server, err := serverFor(c, text)
			if err != nil {
				return err
			}
			if !c.Bool("merge") && c.String("into") == "" {
				if server != "" {
					if text, err = withServer(text, server); err != nil {
						return fmt.Errorf("%s: %w", path, err)
					}
				}
				_, err = c.App.Writer.Write(text)
				return err
			}
			result, err := certs.MergeKubeconfig(c.Context, c.String("into"), path, certs.MergeOptions{
				Name: c.String("name"), Overwrite: c.Bool("overwrite"), SetCurrent: c.Bool("set-current"),
				Server: server,
			})
			if errors.Is(err, certs.ErrConflict) {
				return fmt.Errorf("%w: choose another name with --name, or replace it with --overwrite", err)
			} else if err != nil {
				return err
			}
			if result.Closed {
				fmt.Fprintf(c.App.ErrWriter, "karve: warning: other users could read %s, which has an administrator's key now: only its owner can read it from now on\n", result.Path)
			}
			next := "kubectl config use-context " + result.Context
			if result.Current {
				next = "it is the current context"
			}
			fmt.Fprintf(c.App.Writer, "context %q is in %s; %s\n", result.Context, result.Path, next)
			return nil
		},
	}
}
