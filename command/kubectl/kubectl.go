package kubectl

import (
	"os"
	"path/filepath"

	"github.com/urfave/cli/v2"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/tools/clientcmd"
	componentcli "k8s.io/component-base/cli"
	"k8s.io/kubectl/pkg/cmd"
	"k8s.io/kubectl/pkg/cmd/plugin"
	"k8s.io/kubectl/pkg/cmd/util"

	"github.com/karve-k8s/karve/command/options"
)

// Command is only for the help: main hands `karve kubectl …` to
// Run before options are looked at.
func Command() *cli.Command {
	return &cli.Command{
		Name:            "kubectl",
		Usage:           "kubectl, for this cluster unless KUBECONFIG names another",
		SkipFlagParsing: true,
		Action:          func(c *cli.Context) error { Run(c.Args().Slice(), OursFirst); return nil },
	}
}

// Which kubeconfig kubectl uses when neither an option nor KUBECONFIG says.
type kubeconfigOrder bool

const (
	OursFirst  kubeconfigOrder = true  // karve kubectl: the cluster beside it
	UsersFirst kubeconfigOrder = false // kubectl: what kubectl does
)

// Run is upstream's kubectl (k8s.io/kubernetes/cmd/kubectl). It ends the
// process with kubectl's exit code if there was an error.
func Run(args []string, order kubeconfigOrder) {
	if path := ownKubeconfig(); path != "" && os.Getenv(clientcmd.RecommendedConfigPathEnvVar) == "" &&
		(order == OursFirst || !readable(clientcmd.RecommendedHomeFile)) {
		os.Setenv(clientcmd.RecommendedConfigPathEnvVar, path)
	}
	os.Args = append([]string{"kubectl"}, args...) // plugins and completion look there
	command := cmd.NewDefaultKubectlCommandWithArgs(cmd.KubectlOptions{
		PluginHandler: cmd.NewDefaultPluginHandler(plugin.ValidPluginFilenamePrefixes),
		Arguments:     os.Args,
		ConfigFlags: genericclioptions.NewConfigFlags(true).WithDeprecatedPasswordFlag().
			WithDiscoveryBurst(300).WithDiscoveryQPS(50),
		IOStreams: genericclioptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr},
	})
	if err := componentcli.RunNoErrOutput(command); err != nil {
		util.CheckErr(err)
	}
}

// ownKubeconfig is the admin's kubeconfig of the server on this machine, or
// empty if there is none, or none that this user may read.
func ownKubeconfig() string {
	dirs := []string{os.Getenv("KARVE_DATA_DIR"), options.DefaultDataDir(), "/var/lib/karve"}
	for _, dir := range dirs {
		if path := filepath.Join(dir, "admin.kubeconfig"); dir != "" && readable(path) {
			return path
		}
	}
	return ""
}

func readable(path string) bool {
	f, err := os.Open(path)
	if err == nil {
		f.Close()
	}
	return err == nil
}
