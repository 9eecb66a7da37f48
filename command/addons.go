package command

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/command/datadir"
	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/servers"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/nodes/addons"
)

// addonTimeout limits each request to the server.
const addonTimeout = 30 * time.Second

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
				Name:   "list",
				Usage:  "list the addons, and whether they run",
				Before: options.FindDataDir,
				Flags:  addonFlags(output.Flag()),
				Action: listAddons,
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
			{
				Name:        "delete",
				Usage:       "delete what karve addons apply has created",
				Subcommands: []*cli.Command{deleteCommand(addons.KubeProxy), deleteCommand(addons.CoreDNS)},
			},
		},
	}
}

func addonFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		options.Config(), options.DataDir(),
		&cli.StringFlag{Name: "kubeconfig", Usage: "`FILE` that names another server than that of --data-dir"},
	}, more...)
}

// applyCommand is `karve addons apply NAME`.
func applyCommand(name, usage string, own ...cli.Flag) *cli.Command {
	return &cli.Command{
		Name:  name,
		Usage: usage,
		Description: "The objects are those that kubeadm makes. Applying an addon again updates it to the\n" +
			"version of this karve, and to the options that are given: options are not remembered.\n" +
			"Nothing is changed if a field has another value that somebody else has set.",
		Before: options.FindDataDir,
		Flags: addonFlags(append(own,
			&cli.StringFlag{Name: "image-repository", Usage: "`REPOSITORY` of the image, such as a mirror of " + addons.DefaultImageRepository},
			&cli.StringFlag{Name: "image", Usage: "whole `NAME` of the image, with its tag"},
			&cli.BoolFlag{Name: "force-conflicts", Usage: "overwrite fields that somebody else has set"},
			&cli.BoolFlag{Name: "dry-run", Usage: "only show which objects would change"},
			&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Usage: "`FORMAT`: yaml prints the objects, and changes nothing"},
		)...),
		Action: func(c *cli.Context) error { return applyAddon(c, name) },
	}
}

// deleteCommand is `karve addons delete NAME`.
func deleteCommand(name string) *cli.Command {
	return &cli.Command{
		Name:        name,
		Usage:       "delete the objects of " + name + " that karve addons apply has created",
		Description: "Objects that existed before are left as they are.",
		Before:      options.FindDataDir,
		Flags:       addonFlags(&cli.BoolFlag{Name: "yes", Aliases: []string{"y"}, Usage: "do not ask for confirmation"}),
		Action:      func(c *cli.Context) error { return deleteAddon(c, name) },
	}
}

// addonClients are the clients for a server.
type addonClients struct {
	typed   kubernetes.Interface
	dynamic dynamic.Interface
	url     string
}

func newAddonClients(c *cli.Context) (*addonClients, error) {
	config, err := servers.Connect(c.String("data-dir"), c.String("kubeconfig"))
	if err != nil {
		return nil, err
	}
	config.Timeout, config.QPS = addonTimeout, -1
	config.WarningHandler = rest.NewWarningWriter(c.App.ErrWriter, rest.WarningWriterOptions{Deduplicate: true})
	typed, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	return &addonClients{typed, client, config.Host}, err
}

// explain adds to an error what a user can do about it.
func (c *addonClients) explain(err error) error {
	if utilnet.IsConnectionRefused(err) {
		return fmt.Errorf("no server answers at %s: start one with karve server", c.url)
	}
	return err
}

// readSettings reads the options of `karve addons apply`.
func readSettings(c *cli.Context) (addons.Settings, error) {
	s := addons.Settings{
		Version: version.Kubernetes, Server: strings.TrimSuffix(c.String("server"), "/"), ClusterCIDR: c.String("cluster-cidr"), ClusterDomain: c.String("cluster-domain"),
		ImageRepository: strings.TrimSuffix(c.String("image-repository"), "/"), Image: c.String("image"), ProxyMode: c.String("proxy-mode"),
	}
	var problems []error
	if format := c.String("output"); format != "" && format != "yaml" {
		problems = append(problems, fmt.Errorf("--output %q: want yaml, or leave it out", format))
	}
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
	clients, err := newAddonClients(c)
	if err != nil {
		return err
	}
	if settings, err = addons.Read(c.Context, clients.typed, name, settings); err != nil {
		return clients.explain(err)
	}
	objects, err := addons.Objects(name, settings)
	if err != nil {
		return err
	}
	if c.String("output") == "yaml" {
		text, err := addons.YAML(objects)
		if err == nil {
			_, err = c.App.Writer.Write(text)
		}
		return err
	}
	o := addons.ApplyOptions{DryRun: c.Bool("dry-run"), ForceConflicts: c.Bool("force-conflicts")}
	results, err := addons.Apply(c.Context, clients.dynamic, name, objects, o)
	showResults(c.App.Writer, o.DryRun, results...)
	if err != nil || name != addons.CoreDNS {
		return clients.explain(err)
	}
	address, err := addons.DNSAddress(settings.ServiceRange)
	if err != nil {
		return err
	}
	result, warning, err := addons.TellKubelets(c.Context, clients.typed, address, o)
	if err != nil {
		return clients.explain(err)
	}
	if warning != "" {
		fmt.Fprintln(c.App.ErrWriter, "karve: warning:", warning)
	}
	if result.Object != "" {
		showResults(c.App.Writer, o.DryRun, result)
	}
	if result.Action == addons.Configured && !o.DryRun {
		fmt.Fprintln(c.App.Writer, oldNodes+"\n"+withoutDNS)
	}
	return nil
}

func showResults(w io.Writer, dryRun bool, results ...addons.Result) {
	for _, r := range results {
		if dryRun {
			r.Action += " (dry run)"
		}
		fmt.Fprintln(w, r.Object, r.Action)
	}
}

func deleteAddon(c *cli.Context, name string) error {
	clients, err := newAddonClients(c)
	if err != nil {
		return err
	}
	made, err := addons.Made(c.Context, clients.dynamic, name)
	if err != nil {
		return clients.explain(err)
	}
	if len(made) == 0 {
		return fmt.Errorf("the cluster has nothing of %s that karve addons apply has created", name)
	}
	if !c.Bool("yes") {
		if err := datadir.Agree(c, "deleting "+strings.Join(made, ", "), "nothing was deleted"); err != nil {
			return err
		}
	}
	results, err := addons.Delete(c.Context, clients.dynamic, name)
	showResults(c.App.Writer, false, results...)
	if err != nil || !slices.Contains(results, addons.Result{Object: "service/kube-dns", Action: addons.Deleted}) {
		return clients.explain(err)
	}
	result, changed, err := addons.UntellKubelets(c.Context, clients.typed)
	if err == nil && changed {
		showResults(c.App.Writer, false, result)
		fmt.Fprintln(c.App.Writer, oldNodes)
	}
	return clients.explain(err)
}

func listAddons(c *cli.Context) error {
	if err := output.Check(c); err != nil {
		return err
	}
	clients, err := newAddonClients(c)
	if err != nil {
		return err
	}
	list, err := addons.List(c.Context, clients.typed)
	if err != nil {
		return clients.explain(err)
	}
	return output.Show(c, list, func(w io.Writer) {
		fmt.Fprintln(w, "NAME\tAPPLIED\tREADY\tIMAGE")
		for _, s := range list {
			applied, ready := "no", "-"
			switch {
			case s.Image == "":
			case s.Made:
				applied = "yes"
			default:
				applied = "by others"
			}
			image := s.Image
			if image == "" {
				image = "-"
			} else {
				ready = fmt.Sprintf("%d/%d", s.Ready, s.Wanted)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Name, applied, ready, image)
		}
	})
}

func listImages(c *cli.Context) error {
	if err := output.Check(c); err != nil {
		return err
	}
	images := addons.Images(addons.Settings{Version: version.Kubernetes, ImageRepository: strings.TrimSuffix(c.String("image-repository"), "/")})
	return output.Show(c, images, func(w io.Writer) {
		for _, image := range images {
			fmt.Fprintln(w, image)
		}
	})
}
