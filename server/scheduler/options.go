package scheduler

import (
	"errors"
	"fmt"

	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"

	"github.com/karve-k8s/karve/server/election"
	"github.com/karve-k8s/karve/server/flags"
)

var ownedFlags = map[string]string{
	"master":                    "the API server is this process",
	"kubeconfig":                "the API server is this process",
	"authentication-kubeconfig": "the scheduler has no port of its own",
	"authorization-kubeconfig":  "the scheduler has no port of its own",
	"secure-port":               "the scheduler has no port of its own",
	"bind-address":              "the scheduler has no port of its own",
	"write-config-to":           "it would end the process",
	"feature-gates":             "use --feature-gates",
	"v":                         "use --log-level",
	"vmodule":                   "use --log-level",
	"logging-format":            "use --log-format",
}

// Upstream is kube-scheduler's own options, with Karve's defaults and the user's settings.
type Upstream struct {
	*options.Options

	shared bool // other servers can use the datastore, so that there may be an election
}

// option is the option that has kube-scheduler's.
const option = "kube-scheduler-arg"

// Find reports whether kube-scheduler has an option. If Karve sets it, instead says what to use in its place.
func Find(name string) (found bool, instead string) {
	return flags.Find(*options.NewOptions().Flags, ownedFlags, name)
}

// Parse returns the options that args, NAME=VALUE, describe. Its error joins every problem. shared
// says that other servers can use the datastore. Then one of them runs the scheduler, unless args or
// the scheduler's configuration file say otherwise.
func Parse(args []string, shared bool) (*Upstream, error) {
	o := options.NewOptions()
	o.SecureServing.BindPort = 0
	set := o.Flags.FlagSet("leader election")
	if !shared { // a flag counts more than a configuration file
		if err := set.Set("leader-elect", "false"); err != nil {
			return nil, fmt.Errorf("switch off leader election: %w", err)
		}
	}
	if err := flags.Apply(Component, option, *o.Flags, ownedFlags, args); err != nil {
		return nil, err
	}
	if err := election.Check(option, *o.LeaderElection, set, shared); err != nil {
		return nil, err
	}
	return &Upstream{o, shared}, nil
}

// Validate returns what kube-scheduler would refuse. It reads the feature gates of the
// process.
func (u *Upstream) Validate() error {
	if err := u.complete(); err != nil {
		return err
	}
	if errs := u.Options.Validate(); len(errs) > 0 {
		return fmt.Errorf("--"+option+": %w", errors.Join(errs...))
	}
	if err := checkFile(u.ConfigFile); err != nil {
		return fmt.Errorf("--%s config=%s: %w", option, u.ConfigFile, err)
	}
	return nil
}

// checkFile reads a configuration file as the start does later.
func checkFile(file string) error {
	if file == "" {
		return nil
	}
	config, err := options.LoadConfigFromFile(klog.Background(), file)
	if err != nil {
		return err
	}
	// Upstream reads this kubeconfig, which is then not used.
	if name := config.ClientConnection.Kubeconfig; name != "" {
		if _, err := clientcmd.LoadFromFile(name); err != nil {
			return fmt.Errorf("clientConnection.kubeconfig: %w: remove the field, because the API server is this process", err)
		}
	}
	return nil
}

// source is what has the settings for leader election, for messages.
func (u *Upstream) source() string {
	if u.ConfigFile == "" {
		return option
	}
	return fmt.Sprintf("%s config=%s, leaderElection", option, u.ConfigFile)
}

// complete sets the default configuration, which depends on the process' feature gates.
func (u *Upstream) complete() (err error) {
	if u.ComponentConfig, err = latest.Default(); err != nil {
		return fmt.Errorf("default scheduler configuration: %w", err)
	}
	return nil
}
