package options

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/membership"
	"github.com/karve-k8s/karve/simulate"
)

// serverConfig reads the options into the server's configuration.
func serverConfig(c *cli.Context) (server.Config, error) {
	mode, wrongMode := strconv.ParseUint(c.String("write-kubeconfig-mode"), 8, 9)
	if wrongMode != nil {
		wrongMode = fmt.Errorf("--write-kubeconfig-mode %q: want an octal mode such as 0640", c.String("write-kubeconfig-mode"))
	}
	limit, wrongLimit := memory.Limit(c.String("memory-limit"))
	if wrongLimit != nil {
		wrongLimit = fmt.Errorf("--memory-limit %q: %w", c.String("memory-limit"), wrongLimit)
	}
	config := server.Config{
		MemoryLimit:           limit,
		SettleAfter:           c.Duration("settle-after"),
		DataDir:               c.String("data-dir"),
		SSHUser:               c.String("ssh-user"),
		SSHKeyFile:            c.String("ssh-keyfile"),
		SSHAgent:              c.String("ssh-agent"),
		SSHJump:               c.String("ssh-jump"),
		SSHKnownHosts:         c.String("ssh-known-hosts"),
		SSHPort:               c.Int("ssh-port"),
		BindAddress:           c.String("bind-address"),
		SecurePort:            c.Int("secure-port"),
		AdvertiseAddress:      c.String("advertise-address"),
		AdvertiseURL:          c.String("advertise-url"),
		ControlPlaneEndpoint:  c.String("control-plane-endpoint"),
		NoKubeadmObjects:      c.Bool("no-kubeadm-objects"),
		InsecureBindAddress:   c.String("insecure-bind-address"),
		InsecurePort:          c.Int("insecure-port"),
		InsecureAllowRemote:   c.Bool("insecure-allow-remote"),
		InsecureAnyUser:       c.Bool("insecure-any-user"),
		DisableHTTP2:          c.Bool("disable-http2"),
		CompressLoopback:      c.Bool("compress-loopback"),
		TLSSANs:               split(c.StringSlice("tls-san")),
		TLSCertFile:           c.String("tls-cert-file"),
		TLSKeyFile:            c.String("tls-private-key-file"),
		WriteKubeconfig:       c.String("write-kubeconfig"),
		WriteKubeconfigMode:   os.FileMode(mode),
		ServiceClusterIPRange: c.String("service-cluster-ip-range"),
		ClusterCIDR:           c.String("cluster-cidr"),
		ClusterDomain:         c.String("cluster-domain"),
		DatastoreEndpoint:     c.String("datastore-endpoint"),
		Durability:            c.String("durability"),
		ForkFrom:              c.String("fork-from"),
		DatastoreCAFile:       c.String("datastore-cafile"),
		DatastoreCertFile:     c.String("datastore-certfile"),
		DatastoreKeyFile:      c.String("datastore-keyfile"),
		ClusterTokenFile:      c.String("cluster-token-file"),
		NewAuthorities:        c.String(membership.NewAuthoritiesOption),
		EtcdListen:            c.String("etcd-listen"),
		NoControllers:         c.Bool("no-controllers"),
		DisableControllers:    split(c.StringSlice("disable-controllers")),
		DisableScheduler:      c.Bool("disable-scheduler"),
		ApproveKubeletServing: c.Bool("approve-kubelet-serving"),
		SimulateNodes:         c.Int("simulate-nodes"),
		SimulatePods:          c.StringSlice(simulate.PodsOption),
		SimulateListen:        split(c.StringSlice(simulate.ListenOption)),
		ControllerManagerArgs: c.StringSlice("kube-controller-manager-arg"),
		SchedulerArgs:         c.StringSlice("kube-scheduler-arg"),
		StartupTrace:          c.String("startup-trace"),
		Upstream:              split(c.StringSlice("upstream")),
		StartTimeout:          c.Duration("start-timeout"),
	}
	switch config.InsecurePort { // as Kubernetes had it, 0 is off
	case 0:
		config.DisableInsecure = true
	case -1:
		config.InsecurePort = 0
	}
	upstream, err := apiserver.UserFlags()
	if err != nil {
		return config, err
	}
	set := setFlags(c)
	for _, f := range upstream {
		switch {
		case !set[f.Name]:
		case f.Bool:
			config.APIServerArgs = append(config.APIServerArgs, fmt.Sprintf("%s=%v", f.Name, c.Bool(f.Name)))
		default:
			for _, value := range c.StringSlice(f.Name) {
				config.APIServerArgs = append(config.APIServerArgs, f.Name+"="+value)
			}
		}
	}
	config.APIServerArgs = append(config.APIServerArgs, c.StringSlice("kube-apiserver-arg")...)
	return config, errors.Join(wrongMode, wrongLimit, checkAnyUser(server.OwnersKnown, config.InsecureAnyUser, set["insecure-port"]))
}

// setFlags are the names of what was given on the command line, in the configuration
// file or in a variable. It is Context.IsSet for all flags at once, which goes
// through all of them for each.
func setFlags(c *cli.Context) map[string]bool {
	set := map[string]bool{}
	for _, name := range c.FlagNames() {
		set[name] = true
	}
	for _, f := range c.Command.Flags {
		if f.IsSet() {
			set[f.Names()[0]] = true
		}
	}
	return set
}

// split takes a,b and repeated options alike.
func split(values []string) []string {
	var all []string
	for _, v := range values {
		for item := range strings.SplitSeq(v, ",") {
			if item = strings.TrimSpace(item); item != "" {
				all = append(all, item)
			}
		}
	}
	return all
}
