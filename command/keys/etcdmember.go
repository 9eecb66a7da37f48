package keys

import (
	"errors"
	"fmt"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
)

func etcdMemberCommand() *cli.Command {
	return &cli.Command{
		Name:  "etcd-member",
		Usage: "make or renew the certificates of a member of an etcd on several machines",
		Description: `Run it on each machine. The arguments are its names and addresses, at which the others
reach its etcd. DIR must have the authority of all members, etcd-ca.crt and etcd-ca.key: make
it on the first machine with --new-authority, and copy both files to the others. The next time,
it needs no arguments, and renews what has less than a third of its lifetime left. etcd and
karve use renewed files with their next connections.`,
		ArgsUsage: "[NAME|ADDRESS...]",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "dir", Usage: "`DIR` with the files, such as /etc/karve"},
			&cli.BoolFlag{Name: "new-authority", Usage: "make the authority, on the first machine"},
		},
		Action: etcdMember,
	}
}

func etcdMember(c *cli.Context) error {
	dir := c.String("dir")
	if dir == "" {
		return errors.New("--dir is missing: name the directory with the files of this member, such as /etc/karve")
	}
	config := certs.Config{Dir: options.Absolute(dir), ExtraSANs: c.Args().Slice()}
	written, notes, err := certs.EtcdMember(config, c.Bool("new-authority"))
	for _, note := range notes {
		fmt.Fprintln(c.App.ErrWriter, "karve:", output.Printable(fmt.Sprint(note)))
	}
	if err != nil {
		return err
	}
	for _, name := range written {
		fmt.Fprintf(c.App.Writer, "wrote %s\n", certs.File(config.Dir, name))
	}
	if slices.Contains(written, certs.EtcdCA) && c.Bool("new-authority") {
		fmt.Fprintln(c.App.Writer, "Next: copy etcd-ca.crt and etcd-ca.key to the other machines, readable for root only, and run this there without --new-authority")
	}
	return nil
}
