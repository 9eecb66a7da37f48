// Package keys has the commands about what a cluster trusts and what gives access to it: certificates, kubeconfigs, the key of SSH, the
// encryption of Secrets, bootstrap tokens with kubeadm's conversion and names, and the cluster token.
package keys

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/setup"
)

// Certs is `karve certs`.
func Certs() *cli.Command {
	return &cli.Command{
		Name:  "certs",
		Usage: "list the certificates, renew them, or replace the authorities",
		Subcommands: []*cli.Command{
			{
				Name:   "list",
				Usage:  "list the certificates and keys, and when they expire",
				Flags:  []cli.Flag{options.Config(), options.DataDir(), output.Flag()},
				Before: options.FindDataDir,
				Action: options.AsOwner(listCerts),
			},
			{
				Name:      "renew",
				Usage:     "renew the named certificates, or all except the CAs, and the admin's kubeconfigs. A running server uses them immediately.",
				ArgsUsage: "[NAME...]",
				Flags:     []cli.Flag{options.Config(), options.DataDir()},
				Before:    options.FindDataDir,
				Action:    renewCerts,
			},
			rotateCACommand(),
			etcdMemberCommand(),
		},
	}
}

func certsDir(c *cli.Context) (string, error) {
	dir := filepath.Join(c.String("data-dir"), "certs")
	if _, err := os.Stat(dir); err != nil {
		return "", servers.None(c.String("data-dir"))
	}
	return dir, nil
}

func listCerts(c *cli.Context) error {
	dir, err := certsDir(c)
	if err != nil {
		return err
	}
	infos, err := certs.List(dir, time.Now())
	if err != nil {
		return err
	}
	users, err := certs.Users(dir, time.Now())
	if err != nil {
		return err
	}
	infos = append(infos, users...)
	return output.Show(c, infos, func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tKIND\tSUBJECT\tKEY\tEXPIRES\tDAYS LEFT\tORIGIN")
		for _, i := range infos {
			origin, expires, days := "karve", "-", "-"
			if i.Kind != certs.KindKey && i.Problem == "" {
				expires, days = i.NotAfter.Format(time.DateOnly), fmt.Sprint(i.DaysLeft)
			}
			if i.UserSupplied {
				origin = "user"
			}
			if i.Problem != "" {
				origin = i.Problem
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%s\n", output.Printable(string(i.Name)), i.Kind, output.Printable(i.Subject), i.KeyType, expires, days, output.Printable(origin))
		}
	})
}

func renewCerts(c *cli.Context) error {
	dir, err := certsDir(c)
	if err != nil {
		return err
	}
	var names []certs.Name
	for _, arg := range c.Args().Slice() {
		name, err := certs.ParseName(arg)
		if err != nil {
			return err
		}
		names = append(names, name)
	}
	return withStore(c, dir, func(store *certs.Store) ([]certs.Note, error) {
		renewed, notes, err := store.ForceRenew(names...)
		for _, name := range renewed {
			fmt.Fprintf(c.App.Writer, "renewed %s\n", name)
		}
		return notes, err
	})
}

// withStore calls change with the certificates of a server. Afterwards it renews what is due, and the admin's kubeconfigs.
func withStore(c *cli.Context, dir string, change func(*certs.Store) ([]certs.Note, error)) error {
	return ownership.Act(dir, func() error {
		unlock, err := setup.Lock(dir) // two replacements at once would mix the certificate of one with the key of the other
		if err != nil {
			return err
		}
		defer unlock()
		infos, err := certs.List(dir, time.Now())
		if err != nil {
			return err
		}
		// The server's options are not known here. Its certificate is: it stays valid for the same
		// names and addresses, and none of this machine's others are added.
		config := certs.Config{Dir: dir, InterfaceAddrs: func() ([]net.Addr, error) { return nil, nil }}
		for _, i := range infos {
			if i.Name == certs.Serving {
				config.ExtraSANs = i.SANs
				config.ClusterDomain = clusterDomain(i.SANs)
			}
		}
		store, notes, err := certs.Open(config)
		if err != nil {
			return err
		}
		changed, err := change(store)
		if err != nil {
			return err
		}
		_, renewed, err := store.Renew()
		if err != nil {
			return err
		}
		left, err := certs.RenewKubeconfigs(store, filepath.Join(c.String("data-dir"), "admin.kubeconfig"))
		told := map[certs.Note]bool{}
		for _, note := range slices.Concat(notes, changed, renewed, left) {
			if !told[note] {
				fmt.Fprintln(c.App.ErrWriter, "karve:", output.Printable(fmt.Sprint(note)))
			}
			told[note] = true
		}
		return err
	})
}

// clusterDomain returns the cluster domain of a serving certificate, or "" for the default.
func clusterDomain(sans []string) string {
	for _, name := range sans {
		if domain, ok := strings.CutPrefix(name, "kubernetes.default.svc."); ok {
			return domain
		}
	}
	return ""
}
