package command

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/nodes/join"
)

// nodeCommand is `karve node`, which install.sh uses: this machine as a node.
func nodeCommand() *cli.Command {
	kubelet := []cli.Flag{
		&cli.StringFlag{Name: "kubelet", Usage: "`FILE` to install as the kubelet (default: download the server's version)"},
		&cli.StringFlag{Name: "kubelet-url", Value: join.DefaultKubeletURL, Usage: "`URL` of a mirror of Kubernetes' downloads"},
		&cli.StringFlag{Name: "kubelet-sha256", Usage: "`CHECKSUM` that the kubelet has to have (default: that in this program, or the one that Kubernetes publishes)"},
		&cli.DurationFlag{Name: "timeout", Value: join.DefaultTimeout, Usage: "`DURATION` that the node may take to become Ready"},
	}
	joining := []cli.Flag{
		&cli.StringFlag{Name: "server", Usage: "`URL` of the API server, such as https://board.example:6443"},
		&cli.StringFlag{Name: "token-file", Usage: "`FILE` with the bootstrap token; - is standard input"},
		&cli.StringSliceFlag{Name: "ca-hash", Usage: "`HASH` of an authority of the cluster, such as sha256:0123… May be given several times"},
		&cli.StringSliceFlag{Name: "ca-file", Usage: "`FILE` with an authority of the cluster (server-ca.crt and client-ca.crt), instead of --ca-hash. May be given several times"},
		&cli.StringFlag{Name: "node-name", Usage: "`NAME` of the node (default: the hostname)"},
		&cli.StringFlag{Name: "node-ip", Usage: "`ADDRESS` that the node reports (default: the address of the default route)"},
		&cli.StringFlag{Name: "pod-cidr", Usage: "`CIDR` of this node's Pods (default: what the cluster gives it)"},
		&cli.StringFlag{Name: "ssh-user", Usage: "`USER` as whom the server logs in through SSH: its key goes into that user's authorized_keys (needs a server with --ssh-user)"},
		&cli.StringSliceFlag{Name: "node-labels", Usage: "labels of the Node, such as `disk=ssd,zone=a`"},
		&cli.StringSliceFlag{Name: "node-taints", Usage: "taints of the Node, such as `gpu=yes:NoSchedule`: only Pods that tolerate them come to it"},
		&cli.BoolFlag{Name: "no-network", Usage: "write no network configuration for Pods: another plugin will"},
	}
	return &cli.Command{
		Name:   "node",
		Usage:  "make this machine a node of a cluster",
		Before: finish,
		Subcommands: []*cli.Command{
			{
				Name:  "join",
				Usage: "install a kubelet and join a cluster; needs root",
				Description: `It checks everything that it can before it changes the machine, and undoes
everything if the node does not become Ready. Debian's packages containerd, runc,
containernetworking-plugins and iptables are installed with apt if they are missing;
they stay.`,
				Flags:  append(joining, kubelet...),
				Action: joinNode,
			},
			nodeInstallCommand(append(joining, kubelet...)),
			{
				Name:  "upgrade",
				Usage: "replace the kubelet by the server's version; Pods keep running",
				Flags: append([]cli.Flag{&cli.StringFlag{Name: "server", Usage: "`URL` of the API server, if it has another address now"}}, kubelet...),
				Action: func(c *cli.Context) error {
					o, err := kubeletOptions(c)
					if err != nil {
						return err
					}
					o.Server = c.String("server")
					return join.Upgrade(c.Context, &join.Machine{}, o)
				},
			},
			{
				Name:  "remove",
				Usage: "remove the kubelet, this machine's Pods, and all that join made, but not packages",
				Action: func(c *cli.Context) error {
					o := nodeOptions(c)
					if err := join.Remove(c.Context, &join.Machine{}, o.Say); err != nil {
						return err
					}
					o.Say("this machine is no node any more. `karve kubectl delete node` on the server removes the Node object")
					return nil
				},
			},
			{
				Name:   "uninstall",
				Usage:  "remove what `karve node install` installed: the node, and this program unless a server needs it",
				Flags:  []cli.Flag{&cli.BoolFlag{Name: "with-server", Usage: "only if it is the node of the server on this machine, which is being removed"}},
				Action: uninstallNode,
			},
			{
				Name:   "follow",
				Hidden: true, // for the service beside the kubelet
				Usage:  "wait for the range of the Node's Pods, and give it to their network",
				Action: func(c *cli.Context) error { return join.Follow(c.Context, &join.Machine{}, nodeOptions(c)) },
			},
			{
				Name:   "status",
				Usage:  "show which node this machine is, and whether it is Ready",
				Flags:  []cli.Flag{output.Flag()},
				Action: nodeStatus,
			},
		},
	}
}

// nodeOptions are those that several commands have.
func nodeOptions(c *cli.Context) join.Options {
	return join.Options{
		Kubelet:       c.String("kubelet"),
		KubeletURL:    c.String("kubelet-url"),
		KubeletSHA256: c.String("kubelet-sha256"),
		Timeout:       c.Duration("timeout"),
		Say:           saying(c.App.Writer, "karve: "),
		Warn:          saying(c.App.ErrWriter, "karve: warning: "),
	}
}

// kubeletOptions are nodeOptions of a command that installs a kubelet.
func kubeletOptions(c *cli.Context) (o join.Options, err error) {
	o = nodeOptions(c)
	o.Signed, err = join.ParseSigned(os.Getenv("KARVE_REQUIRE_SIGNATURE"))
	return o, err
}

// joinOptions are the options of a join, without the token.
func joinOptions(c *cli.Context) (join.Options, error) {
	o, err := kubeletOptions(c)
	o.Server, o.CAHashes, o.CAFiles = c.String("server"), c.StringSlice("ca-hash"), c.StringSlice("ca-file")
	o.Name, o.IP, o.PodCIDR, o.NoNetwork = c.String("node-name"), c.String("node-ip"), c.String("pod-cidr"), c.Bool("no-network")
	o.SSHUser = c.String("ssh-user")
	o.Labels, o.Taints = strings.Join(c.StringSlice("node-labels"), ","), strings.Join(c.StringSlice("node-taints"), ",")
	return o, err
}

func joinNode(c *cli.Context) error {
	o, err := joinOptions(c)
	if err != nil {
		return err
	}
	if o.Token, err = readToken(c.String("token-file"), c.App.Reader); err != nil {
		return err
	}
	if err := join.Join(c.Context, &join.Machine{}, o); err != nil {
		return err
	}
	o.Say("this machine is a node now: `karve node status` shows it")
	return nil
}

// readToken reads it from a file, because other users can see the arguments of a program.
func readToken(file string, stdin io.Reader) (string, error) {
	var text []byte
	var err error
	switch file {
	case "":
		return "", nil
	case "-":
		text, err = io.ReadAll(io.LimitReader(stdin, 1024))
	default:
		text, err = os.ReadFile(file)
	}
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" {
		return "", fmt.Errorf("--token-file %s: it is empty: write the token into it", file)
	}
	return token, nil
}

func nodeStatus(c *cli.Context) error {
	s, err := join.Status(c.Context, &join.Machine{})
	if err != nil {
		return err
	}
	err = output.Show(c, s, func(w io.Writer) {
		state := "Ready"
		if !s.Ready {
			state = "not Ready: " + s.Problem
		}
		fmt.Fprintf(w, "node\t%s\nserver\t%s\nkubelet\t%s\nstate\t%s\n", s.Node, s.Server, s.Kubelet, state)
		if s.Range != "" {
			fmt.Fprintf(w, "network\t%s\n", s.Range)
		}
	})
	if err == nil && !s.Ready {
		return errors.New("the node is not Ready")
	} else if err == nil && s.Range != "" {
		return errors.New("the node's Pods get addresses of another range than the Node's")
	}
	return err
}
