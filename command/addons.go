package command

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/status"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/nodes/addons"
)

// addonsCommand is `karve addons`.
func addonsCommand() *cli.Command {
	return &cli.Command{
		Name:  "addons",
		Usage: "deploy kube-proxy and CoreDNS, which clusters with nodes need",
		Subcommands: []*cli.Command{
			{
				Name:  "apply",
				Usage: "deploy an addon, or update it",
				Subcommands: []*cli.Command{
					applyCommand(addons.KubeProxy, "deploy kube-proxy, which makes Services reachable on every node",
						&cli.StringFlag{Name: "cluster-cidr", Usage: "`CIDR` of all Pod addresses (default: the server's)"},
						&cli.StringFlag{Name: "proxy-mode", Value: addons.ProxyModes[0], Usage: "`MODE`: " + strings.Join(addons.ProxyModes, ", ")},
						&cli.StringFlag{Name: "server", Usage: "`URL` at which nodes reach the API server (default: the one that the server advertises)"},
					),
					applyCommand(addons.CoreDNS, "deploy CoreDNS, with which Pods look up names",
						&cli.IntFlag{Name: "replicas", Usage: fmt.Sprintf("`NUMBER` of Pods (default: as many as there are, or %d)", addons.DefaultReplicas)},
						&cli.StringFlag{Name: "cluster-domain", Usage: "DNS `DOMAIN` of the cluster (default: the server's)"},
					),
				},
			},
			{
				Name:  "images",
				Usage: "list the images that nodes without internet need",
				Description: "These are the images of the addons, and that of the sandbox of each Pod (pause), which kubeadm\n" +
					"uses, too. karve node join writes it into containerd's configuration if there is none; another\n" +
					"configuration may name another image (containerd config dump, sandbox). No server is asked.",
				Flags: []cli.Flag{
					&cli.StringFlag{Name: "image-repository", Value: addons.DefaultImageRepository, Usage: "`REPOSITORY` of the images, such as a mirror"},
					output.Flag(),
				},
				Action: listImages,
			},
		},
	}
}

// applyCommand is `karve addons apply NAME`.
func applyCommand(name, usage string, own ...cli.Flag) *cli.Command {
	return &cli.Command{
		Name:  name,
		Usage: usage,
		Description: "The objects are those that kubeadm makes. The command writes them to addons/" + name + ".yaml in the\n" +
			"directory of the server's manifests, and the server applies the file. Change the addon there.\n" +
			"The same command updates the file to the version of this karve and to the options that are\n" +
			"given: options are not remembered. It does not replace a file that somebody has edited, and the\n" +
			"server leaves fields as they are that somebody else has set in the cluster.\n" +
			"karve addons apply " + name + " -o yaml | karve kubectl diff -f - shows what would change.\n" +
			"Exit code: 0 if the file is applied, otherwise 1.",
		Before: options.FindDataDir,
		Flags: append([]cli.Flag{
			options.Config(), options.DataDir(),
		}, append(own,
			&cli.StringFlag{Name: "image-repository", Usage: "`REPOSITORY` of the image, such as a mirror of " + addons.DefaultImageRepository},
			&cli.StringFlag{Name: "image", Usage: "whole `NAME` of the image, with its tag"},
			&cli.BoolFlag{Name: "force-conflicts", Usage: "replace an edited file, and overwrite once the fields that somebody else has set in the cluster"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: yaml prints the file, and changes nothing"},
		)...),
		Action: func(c *cli.Context) error { return applyAddon(c, name) },
	}
}

// readSettings reads the options of `karve addons apply`.
func readSettings(c *cli.Context) (addons.Settings, error) {
	s := addons.Settings{
		Version: version.Kubernetes, Server: strings.TrimSuffix(c.String("server"), "/"), ClusterCIDR: c.String("cluster-cidr"), ClusterDomain: c.String("cluster-domain"),
		ImageRepository: strings.TrimSuffix(c.String("image-repository"), "/"), Image: c.String("image"), ProxyMode: c.String("proxy-mode"),
	}
	var problems []error
	if n := c.Int("replicas"); c.IsSet("replicas") {
		if n < 1 || n > addons.MostReplicas {
			problems = append(problems, fmt.Errorf("--replicas %d: want a number from 1 to %d", n, addons.MostReplicas))
		}
		s.Replicas = ptr.To(int32(n))
	}
	if c.IsSet("image") && c.IsSet("image-repository") {
		problems = append(problems, errors.New("--image is the whole name of the image: leave out --image-repository"))
	}
	return s, errors.Join(append(problems, s.Check())...)
}

const (
	// oldNodes tells what an administrator has to do on nodes, whose kubelets have a copy.
	oldNodes = "Nodes that joined before keep the DNS that they have. On each, run kubeadm upgrade node phase kubelet-config,\n" +
		"or set clusterDNS in the configuration of its kubelet if it joined without kubeadm, and restart the kubelet."
	// withoutDNS is about those that `karve node` looks after.
	withoutDNS = "A node that install.sh made, and that has no DNS yet, takes it with karve node upgrade."
)

func applyAddon(c *cli.Context, name string) error {
	settings, err := readSettings(c)
	if err != nil {
		return err
	}
	client, _, err := servers.Client(c.String("data-dir"))
	if err == nil {
		settings, err = addons.Read(c.Context, client, name, settings)
	}
	if err != nil {
		return err
	}
	text, err := addons.File(name, settings, false)
	if err != nil {
		return err
	}
	if c.String("output") == "yaml" {
		_, err = c.App.Writer.Write(text)
		return err
	}
	texts := [][]byte{text}
	if c.Bool("force-conflicts") { // this time only
		forced, err := addons.File(name, settings, true)
		if err != nil {
			return err
		}
		texts = [][]byte{forced, text}
	}
	before, err := addons.KubeletDNS(c.Context, client)
	if err != nil {
		return err
	}
	file := status.ManifestFile{Name: "addons/" + name + ".yaml", Edited: addons.Edited, Overwrite: c.Bool("force-conflicts")}
	if applied, err := file.Apply(c, texts...); err != nil || !applied || name != addons.CoreDNS {
		return err
	}
	return awaitDNS(c, client, settings.ServiceRange, before)
}

// awaitDNS waits until nodes that join learn the address of the DNS. before are the addresses that they learned until now.
func awaitDNS(c *cli.Context, client kubernetes.Interface, serviceRange string, before []string) error {
	address, err := addons.DNSAddress(serviceRange)
	if err != nil {
		return err
	}
	warning, err := addons.AwaitKubeletDNS(c.Context, client, address)
	if err != nil {
		return err
	}
	if warning != "" {
		fmt.Fprintln(c.App.ErrWriter, "karve: warning:", warning)
	} else if !slices.Contains(before, address) {
		fmt.Fprintln(c.App.Writer, "nodes that join now use the DNS at "+address+". "+oldNodes+"\n"+withoutDNS)
	}
	return nil
}

func listImages(c *cli.Context) error {
	images := addons.Images(addons.Settings{Version: version.Kubernetes, ImageRepository: strings.TrimSuffix(c.String("image-repository"), "/")})
	return output.Show(c, images, func(w io.Writer) {
		for _, image := range images {
			fmt.Fprintln(w, image)
		}
	})
}
