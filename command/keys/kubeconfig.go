package keys

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/internal/ownership"
)

// Kubeconfig is `karve kubeconfig`.
func Kubeconfig() *cli.Command {
	return &cli.Command{
		Name:  "kubeconfig",
		Usage: "print the admin's kubeconfig or one for another user, or merge it into your own",
		Description: `With --user, it is for a new user with the rights that RBAC gives to that name and
those groups. A running server accepts the user immediately. Nothing can take the
certificate back before it expires, so prefer a short --ttl; "karve certs list" shows
all of them. Without --user, it is the administrator's, whose rights have no limit.

With --server, or if the server was started with --advertise-url, the kubeconfig is
for another machine. Clients refuse the server unless its certificate is valid for
that name or address: --tls-san of karve server adds one.`,
		Flags: []cli.Flag{
			options.Config(), options.DataDir(),
			&cli.StringFlag{Name: "user", Usage: "`NAME` of a user to make, instead of the administrator"},
			&cli.StringSliceFlag{Name: "group", Usage: "`GROUP` of that user. Repeat it for several. system:masters makes an administrator."},
			&cli.DurationFlag{Name: "ttl", Value: 8 * time.Hour, Usage: "`DURATION` for which that user's certificate is valid"},
			&cli.StringFlag{Name: "server", Usage: "`URL` or HOST[:PORT] of the server as the other machine reaches it (default: its --advertise-url, else this machine's own address)"},
			&cli.BoolFlag{Name: "merge", Usage: "merge it into the file that kubectl writes to: of those in KUBECONFIG the first that exists, or else the last; ~/.kube/config without any"},
			&cli.StringFlag{Name: "into", Usage: "`FILE` to merge into instead"},
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the context, cluster and user there (default: " + certs.DefaultContext + ", and the name of --user)"},
			&cli.BoolFlag{Name: "overwrite", Usage: "replace entries of that name, even if they are of another cluster"},
			&cli.BoolFlag{Name: "set-current", Usage: "make it the current context, even if there is another"},
		},
		Before: options.FindDataDir,
		Action: func(c *cli.Context) error {
			if c.String("into") == "-" {
				return errors.New("--into -: want a file to merge into; without --into and --merge, the kubeconfig is printed")
			}
			if !c.IsSet("user") && (c.IsSet("group") || c.IsSet("ttl")) {
				return errors.New("--group and --ttl are for the user that --user names: add --user NAME")
			}
			path := filepath.Join(c.String("data-dir"), "admin.kubeconfig")
			text, err := servers.KubeconfigText(c.String("data-dir"))
			if errors.Is(err, fs.ErrNotExist) {
				return servers.None(c.String("data-dir"))
			} else if err != nil {
				return err
			}
			server, err := serverFor(c, text)
			if err != nil {
				return err
			}
			if _, held, err := servers.Holder(c.String("data-dir")); err == nil && !held {
				fmt.Fprintf(c.App.ErrWriter, "karve: warning: no server runs in %s: if it is a copy, this kubeconfig is for the server of the original\n", c.String("data-dir"))
			}
			if server != "" {
				if text, err = withServer(text, server); err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
			}
			if c.IsSet("user") {
				user, err := issueUser(c)
				if err != nil {
					return err
				}
				if text, err = user.Kubeconfig(text); err != nil {
					return fmt.Errorf("%s: %w", path, err)
				}
			}
			if !c.Bool("merge") && c.String("into") == "" {
				warnOfReaders(c)
				_, err = c.App.Writer.Write(text)
				return err
			}
			result, err := certs.MergeKubeconfig(c.Context, c.String("into"), text, certs.MergeOptions{
				Name: c.String("name"), Overwrite: c.Bool("overwrite"), SetCurrent: c.Bool("set-current"), Outside: c.String("data-dir"),
			})
			if errors.Is(err, certs.ErrConflict) {
				err = fmt.Errorf("%w: choose another name with --name, or replace it with --overwrite", err)
			}
			if err != nil {
				return fmt.Errorf("--%s: %w", map[bool]string{true: "into", false: "merge"}[c.IsSet("into")], err)
			}
			if result.Closed {
				fmt.Fprintf(c.App.ErrWriter, "karve: warning: other users could read %s, which has a user's key now: only its owner can read it from now on\n", result.Path)
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

// warnOfReaders warns if standard output is a file that others can read: the kubeconfig has a private key.
func warnOfReaders(c *cli.Context) {
	f, ok := c.App.Writer.(*os.File)
	if !ok {
		return
	}
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() && info.Mode()&0o077 != 0 {
		fmt.Fprintf(c.App.ErrWriter, "karve: warning: the kubeconfig has a private key, and the file of standard output has mode %04o: chmod 0600 it; with --into FILE, only its owner can read it\n", info.Mode().Perm())
	}
}

// issueUser makes the user of --user.
func issueUser(c *cli.Context) (*certs.Issued, error) {
	u := certs.User{Name: c.String("user"), Groups: c.StringSlice("group"), Life: c.Duration("ttl")}
	var issued certs.Issued
	dir := c.String("data-dir")
	err := ownership.Act(dir, func() (err error) {
		issued, err = certs.IssueUser(filepath.Join(dir, "certs"), u, time.Now())
		return err
	})
	if err != nil {
		return nil, err
	}
	if slices.Contains(u.Groups, "system:masters") {
		fmt.Fprintf(c.App.ErrWriter, "karve: warning: %s is an administrator until %s, and RBAC cannot limit the group system:masters\n", u.Name, issued.NotAfter.Format(time.DateTime))
	}
	if short := time.Until(issued.NotAfter); short < u.Life-time.Minute {
		fmt.Fprintf(c.App.ErrWriter, "karve: warning: %s is valid only until %s, when its authority ends\n", u.Name, issued.NotAfter.Format(time.DateTime))
	}
	return &issued, nil
}
