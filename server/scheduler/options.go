package scheduler

import (
	"errors"
	"fmt"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/latest"

	"github.com/karve-k8s/karve/server/election"
	"github.com/karve-k8s/karve/server/flags"
)

// Reasons why an option has no effect.
const (
	noPort    = "the scheduler has no port of its own; what is served is the API server's"
	inProcess = "the API server is this process"
)

var ownedFlags = map[string]string{
	"master":                    inProcess,
	"kubeconfig":                inProcess,
	"[secure serving]":          noPort,
	"[authentication]":          noPort,
	"[authorization]":           noPort,
	"profiling":                 noPort,
	"contention-profiling":      noPort,
	"kube-api-qps":              flags.NoLimit,
	"kube-api-burst":            flags.NoLimit,
	"write-config-to":           "it would end the process",
	"feature-gates":             "use --feature-gates",
	"emulated-version":          flags.OneVersion,
	"min-compatibility-version": flags.OneVersion,
	"[logs]":                    "use --log-level and --log-format",
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
	if err := u.checkFile(); err != nil {
		return fmt.Errorf("--%s config=%s: %w", option, u.ConfigFile, err)
	}
	return nil
}

// checkFile reads a configuration file as the start does later. It refuses fields that would have no effect.
func (u *Upstream) checkFile() error {
	if u.ConfigFile == "" {
		return nil
	}
	config, err := options.LoadConfigFromFile(klog.Background(), u.ConfigFile)
	if err != nil {
		return err
	}
	client, usual := config.ClientConnection, u.ComponentConfig.ClientConnection
	for _, field := range []struct {
		name, why string
		given     bool
	}{
		{"clientConnection.kubeconfig", inProcess, client.Kubeconfig != ""},
		{"clientConnection.qps", flags.NoLimit, client.QPS != usual.QPS},
		{"clientConnection.burst", flags.NoLimit, client.Burst != usual.Burst},
		{"enableProfiling", noPort, !config.EnableProfiling},
		{"enableContentionProfiling", noPort, !config.EnableContentionProfiling},
	} {
		if field.given {
			err = errors.Join(err, fmt.Errorf("remove %s: %s", field.name, field.why))
		}
	}
	return err
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
