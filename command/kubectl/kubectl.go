// Package kubectl is `karve kubectl`, and kubectl if karve is started under that name: upstream's
// kubectl, for a cluster of this machine.
package kubectl

import (
	"fmt"
	"net/http"
	"os"

	"github.com/urfave/cli/v2"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	componentcli "k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	"k8s.io/kubectl/pkg/cmd/util"

	"github.com/karve-k8s/karve/command/status/servers"
)

// Setup is what kubectl shares with the other commands.
type Setup struct {
	UsualDirs      []string                // data directories of servers
	CheckListed    func(path string) error // refuses a path that KUBECONFIG cannot name
	CheckVariables func(options []string) error
}

// Command is only for the help and completion: command.Main hands `karve kubectl …` to Run before
// options are parsed.
func Command(setup Setup) *cli.Command {
	return &cli.Command{
		Name:            "kubectl",
		Usage:           "kubectl for a cluster of this machine, unless KUBECONFIG names another",
		SkipFlagParsing: true,
		Action:          func(c *cli.Context) error { setup.Run(c.Args().Slice(), OursFirst); return nil },
	}
}

// Order says which kubeconfig kubectl uses if neither an option nor KUBECONFIG names one.
type Order bool

const (
	OursFirst  Order = true  // karve kubectl: that of a server on this machine
	UsersFirst Order = false // kubectl: ~/.kube/config, as upstream's
)

// help is what upstream's help does not say.
const help = `

 karve kubectl is for a server of this machine. Name its data directory with --data-dir DIR or in the
variable KARVE_DATA_DIR. Otherwise it is the server in the usual data directory or, if none
runs there, the only server of this user. If KUBECONFIG is set, kubectl uses that file instead.`

// Run is upstream's kubectl (k8s.io/kubernetes/cmd/kubectl). It ends the process with kubectl's
// exit code if there was an error.
func (s Setup) Run(args []string, order Order) {
	dir := ""
	if order == OursFirst {
		var err error
		if dir, args, err = cutDataDir(args); err != nil {
			fail(err)
		}
		if err := s.CheckVariables([]string{servers.DataDirVariable}); err != nil {
			fail(err)
		}
	}
	chosen := s.thisMachine().choose(dir, order)
	if chosen.kubeconfig != "" {
		os.Setenv(clientcmd.RecommendedConfigPathEnvVar, chosen.kubeconfig)
	}
	os.Args = append([]string{"kubectl"}, args...) // plugins and completion look there
	flags := genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().WithDiscoveryBurst(300).WithDiscoveryQPS(50)
	usual := leaveDefaultAddress()
	var address, token string
	socket := func() (string, string, error) {
		var err error
		if address == "" {
			address, token, err = passOn(chosen.socketIn)
		}
		return address, token, err
	}
	flags.WithWrapConfigFn(func(c *rest.Config) *rest.Config {
		if c.Host == nowhere && chosen.usual && *flags.KubeConfig == "" {
			c.Host = usual
		}
		if c.Host == nowhere && chosen.socketIn != "" && *flags.KubeConfig == "" {
			var err error
			if c.Host, c.BearerToken, err = socket(); err != nil {
				fail(fmt.Errorf("listen for kubectl's own requests: %w", err))
			}
		}
		if chosen.kubeconfig != "" && c.Proxy == nil && *flags.KubeConfig == "" && *flags.APIServer == "" {
			c.Proxy = servers.Direct
		}
		if err := chosen.check(flags, c); err != nil {
			fail(err)
		}
		if err := chosen.unnamed(flags, c); err != nil {
			c.Wrap(func(http.RoundTripper) http.RoundTripper { return refusal{err} })
		}
		return c
	})
	command := cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     os.Args,
		ConfigFlags:   flags,
		IOStreams:     genericclioptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
	})
	if order == OursFirst {
		command.Long += help
	}
	if err := componentcli.RunNoErrOutput(command); err != nil {
		util.CheckErr(err)
	}
}

// leaveDefaultAddress makes kubectl use nowhere as its default address, unless the user has set another one. It returns
// the former one. What kubectl recognizes as its default in a Pod changes with it.
func leaveDefaultAddress() string {
	usual := clientcmd.ClusterDefaults.Server
	if os.Getenv("KUBERNETES_MASTER") != "" {
		return usual
	}
	clientcmd.ClusterDefaults.Server = nowhere
	defaults := &clientcmd.ConfigOverrides{ClusterDefaults: clientcmd.ClusterDefaults}
	if c, ok := clientcmd.NewDefaultClientConfig(*clientcmdapi.NewConfig(), defaults).(*clientcmd.DirectClientConfig); ok {
		clientcmd.DefaultClientConfig = *c
	}
	return usual
}

// refusal ends the process at the first request. What needs no cluster, such as --dry-run=client, works.
type refusal struct{ err error }

func (r refusal) RoundTrip(*http.Request) (*http.Response, error) {
	fail(r.err)
	return nil, r.err
}

// fail ends the process, as kubectl does.
func fail(err error) {
	fmt.Fprintf(os.Stderr, "karve: %v\n", err)
	os.Exit(1)
}

// Has reports whether kubectl has a command of that name.
func Has(name string) bool {
	kubectl := cmd.NewKubectlCommand(cmd.KubectlOptions{IOStreams: genericclioptions.NewTestIOStreamsDiscard()})
	found, _, err := kubectl.Find([]string{name})
	return err == nil && found != kubectl
}
