package kubectl

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/command/status/servers"
)

// dialTimeout is how long a server of this machine may take to accept a connection.
const dialTimeout = 5 * time.Second

// cutDataDir takes --data-dir DIR out of kubectl's arguments, up to a "--".
func cutDataDir(args []string) (dir string, rest []string, err error) {
	for i, arg := range args {
		value, joined := strings.CutPrefix(arg, "--data-dir=")
		switch {
		case arg == "--":
			return "", args, nil
		case joined:
			dir, rest = value, slices.Concat(args[:i], args[i+1:])
		case arg != "--data-dir":
			continue
		case i+1 < len(args):
			dir, rest = args[i+1], slices.Concat(args[:i], args[i+2:])
		}
		if dir == "" || dir == "--" {
			return "", nil, errors.New("--data-dir needs a directory, as in karve kubectl --data-dir DIR get namespaces")
		}
		return dir, rest, nil
	}
	return "", args, nil
}

// machine is what a choice depends on.
type machine struct {
	kubeconfigVariable string
	dataDirVariable    string
	inCluster          bool                           // in a Pod, whose service account kubectl uses
	usersKubeconfig    string                         // ~/.kube/config
	usualDirs          []string                       // data directories
	own                func(usual ...string) []string // the data directories of this user's servers that run
	checkListed        func(path string) error        // that KUBECONFIG can name it
}

func (s Setup) thisMachine() machine {
	return machine{
		kubeconfigVariable: os.Getenv(clientcmd.RecommendedConfigPathEnvVar),
		dataDirVariable:    os.Getenv(servers.DataDirVariable),
		inCluster:          os.Getenv("KUBERNETES_SERVICE_HOST") != "",
		usersKubeconfig:    clientcmd.RecommendedHomeFile,
		usualDirs:          s.UsualDirs,
		own:                servers.Own,
		checkListed:        s.CheckListed,
	}
}

// choice is the cluster that kubectl uses.
type choice struct {
	kubeconfig string // empty: kubectl looks for one itself
	missing    error  // what to say if nothing answers there; nil: what kubectl says
	sure       bool   // that there is none: nothing needs to be tried
	foreign    bool   // kubeconfig is in another user's directory, which this one, root, did not name
	usual      bool   // nothing is named or found: kubectl tries its default address
	socketIn   string // the data directory whose socket this user may use instead of the kubeconfig there
}

// choose picks the cluster for kubectl; dir is that of --data-dir. Commands that need no cluster work
// whatever it is, so that there is none is only said by [choice.check].
func (m machine) choose(dir string, order Order) choice {
	switch {
	case dir != "":
		return m.in(dir)
	case m.kubeconfigVariable != "", order == UsersFirst && servers.Readable(m.usersKubeconfig):
		return choice{}
	case m.dataDirVariable != "":
		return m.in(m.dataDirVariable)
	}
	if chosen, err := servers.Choose(m.own, m.usualDirs...); err != nil {
		return choice{kubeconfig: os.DevNull, sure: true, missing: err}
	} else if chosen != "" {
		return m.found(chosen)
	}
	if servers.Readable(m.usersKubeconfig) || m.inCluster {
		return choice{}
	}
	// Without a kubeconfig, kubectl tries localhost:8080, where a server may listen whose data
	// directory this user cannot read.
	none := m.in(m.usualDirs[0])
	none.sure, none.usual = false, true
	return none
}

// found is the server of a data directory that the user did not name. A service's directory
// belongs to the service's user. That user could write a kubeconfig that makes kubectl start a
// program as root, or send a file of root's. So root uses only one that a server could have written.
func (m machine) found(dir string) choice {
	c := m.in(dir)
	if c.foreign = servers.Foreign(dir); !c.foreign || c.socketIn != "" {
		return c
	}
	if err := servers.AsWritten(dir); err != nil {
		return choice{kubeconfig: os.DevNull, sure: true,
			missing: fmt.Errorf("another user owns %s, and root does not use the kubeconfig there unasked: %w (to use it all the same: --data-dir %[1]s)", dir, err)}
	}
	return c
}

// in is the server of a data directory. A user who may not read the kubeconfig there uses the socket.
func (m machine) in(dir string) choice {
	path := filepath.Join(dir, servers.KubeconfigName)
	readable := servers.Readable(path)
	if !readable && servers.Answers(dir) {
		return choice{kubeconfig: os.DevNull, socketIn: dir}
	}
	err := m.checkListed(path)
	if _, held, _ := servers.Holder(dir); err == nil && readable && !held && !servers.Answers(dir) { // in a copy, it leads to another server
		err = servers.None(dir)
	}
	if err != nil {
		return choice{kubeconfig: os.DevNull, sure: true, missing: err}
	}
	return choice{kubeconfig: path, sure: !readable, missing: servers.None(dir)}
}

// check tells that no server answers or that the socket refuses this user, if no option names another server:
// upstream's kubectl would say five times that it was refused.
func (c choice) check(flags *genericclioptions.ConfigFlags, config *rest.Config) error {
	if c.foreign && *flags.KubeConfig == "" && (config.ExecProvider != nil || config.AuthProvider != nil || config.BearerTokenFile != "") {
		return fmt.Errorf("%s: %w any more", c.kubeconfig, servers.ErrUnlike) // changed since choose read it
	}
	if c.socketIn != "" && config.Host != nowhere {
		return refused(c.socketIn)
	}
	if c.missing == nil || *flags.KubeConfig != "" || *flags.APIServer != "" || *flags.ClusterName != "" || *flags.Context != "" {
		return nil
	}
	if c.sure {
		return c.missing
	}
	address := config.Host
	if u, err := url.Parse(config.Host); err == nil && u.Host != "" {
		address = u.Host
	}
	connection, err := net.DialTimeout("tcp", address, dialTimeout)
	if err != nil {
		return c.missing
	}
	return connection.Close()
}

// nowhere takes the place of kubectl's default address, localhost:8080, where a server may listen that
// nobody has named.
const nowhere = "http://nowhere.invalid"

// unnamed says why kubectl has no cluster although an option or KUBECONFIG names a kubeconfig. It is nil
// if kubectl has one, and what check reports.
func (c choice) unnamed(flags *genericclioptions.ConfigFlags, config *rest.Config) error {
	from, files := "--kubeconfig "+*flags.KubeConfig, []string{*flags.KubeConfig}
	if *flags.KubeConfig == "" {
		value := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
		from, files = clientcmd.RecommendedConfigPathEnvVar+"="+value, filepath.SplitList(value)
	}
	if len(files) == 0 {
		from = clientcmd.RecommendedHomeFile
	}
	missing := func(path string) bool {
		_, err := os.Stat(path)
		return errors.Is(err, fs.ErrNotExist)
	}
	switch {
	case *flags.APIServer != "":
		return nil
	case len(files) > 0 && c.missing == nil && !slices.ContainsFunc(files, func(path string) bool { return !missing(path) }):
		return fmt.Errorf("%s: no such file: correct it, or unset %s to use a server of this machine", from, clientcmd.RecommendedConfigPathEnvVar)
	case config.Host == nowhere:
		return fmt.Errorf("%s: it has no current context with a cluster: name a context with --context, or set one with kubectl config use-context", from)
	}
	return nil
}
