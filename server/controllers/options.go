package controllers

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sirupsen/logrus"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/rest"
	genericcontrollers "k8s.io/controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app/options"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	signer "k8s.io/kubernetes/pkg/controller/certificates/signer/config"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/server/election"
	"github.com/karve-k8s/karve/server/flags"
	"github.com/karve-k8s/karve/server/sharedinformers"
)

// extraControllers are off by default upstream and on in Karve, as with kubeadm:
// without them, `kubeadm join` and bootstrap tokens do not work.
var extraControllers = []string{names.BootstrapSignerController, names.TokenCleanerController}

// noPort is why options of a port have no effect.
const noPort = "the controllers have no port of their own; what is served is the API server's"

var ownedFlags = map[string]string{
	"[misc]":                          "the API server is this process",
	"[secure serving]":                noPort,
	"[authentication]":                noPort,
	"[authorization]":                 noPort,
	"[debugging]":                     noPort,
	"[leader-migration]":              "no cloud-controller-manager runs controllers of this program",
	"[logs]":                          "use --log-level and --log-format",
	"use-service-account-credentials": "each controller has a service account of its own",
	"cluster-cidr":                    "use --cluster-cidr",
	"service-cluster-ip-range":        "use --service-cluster-ip-range",
	"feature-gates":                   "use --feature-gates",
	"emulated-version":                flags.OneVersion,
	"min-compatibility-version":       flags.OneVersion,
}

// Settings are what a user decides about the controllers.
type Settings struct {
	// Args are options of kube-controller-manager, NAME=VALUE.
	Args []string
	// Disabled are the names or aliases of controllers that do not run.
	Disabled []string
	// ClusterCIDR is the range of Pod addresses; empty if no controller assigns them.
	ClusterCIDR string
	// ClusterCIDRChosen says that ClusterCIDR is a default, and not the user's.
	ClusterCIDRChosen bool
	// ServiceClusterIPRange is one CIDR, or two separated by a comma.
	ServiceClusterIPRange string
	// Shared says that other servers can use the datastore. Then one of them runs the controllers.
	Shared bool
	// FlexVolumes is the directory of Flexvolume plugins. It need not exist.
	FlexVolumes string
}

// Upstream is kube-controller-manager's own options, with Karve's defaults and the user's
// settings.
type Upstream struct {
	*options.KubeControllerManagerOptions

	podsChosen bool // the range of Pod addresses is a default, and not the user's
	limited    bool // the user has set how many requests controllers make
}

// Find reports whether kube-controller-manager has an option. If Karve sets it, instead says what to use in its place.
func Find(name string) (found bool, instead string) {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil { // Parse reports it
		return false, ""
	}
	return flags.Find(o.Flags(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()), ownedFlags, name)
}

// Parse returns the options that the settings describe. Its error joins every problem, and
// names the option that the user wrote.
func Parse(s Settings) (*Upstream, error) {
	o, err := options.NewKubeControllerManagerOptions()
	if err != nil {
		return nil, fmt.Errorf("default controller options: %w", err)
	}
	// Making a flag gives its field the flag's default, so the flags come first.
	sets := o.Flags(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases())
	o.SecureServing.BindPort = 0
	o.Generic.LeaderElection.LeaderElect = s.Shared
	o.Generic.Controllers = append([]string{"*"}, extraControllers...)
	// Upstream's fifty and forty workers are no faster: their requests are calls in this
	// process, and wait only for its cores.
	o.ResourceClaimController.ConcurrentSyncs = 10
	o.GarbageCollectorController.ConcurrentGCSyncs = 10
	o.KubeCloudShared.ClusterCIDR = s.ClusterCIDR
	o.KubeCloudShared.AllocateNodeCIDRs = s.ClusterCIDR != ""
	if first, second, ok := strings.Cut(s.ServiceClusterIPRange, ","); ok {
		o.NodeIPAMController.ServiceCIDR, o.NodeIPAMController.SecondaryServiceCIDR = first, second
	} else {
		o.NodeIPAMController.ServiceCIDR = s.ServiceClusterIPRange
	}
	// Upstream's default is in /usr, which does not belong to Karve and may be read-only.
	o.PersistentVolumeBinderController.VolumeConfiguration.FlexVolumePluginDir = s.FlexVolumes

	const option = "kube-controller-manager-arg"
	problems := []error{flags.Apply(Component, option, sets, ownedFlags, s.Args)}
	problems = append(problems, election.Check(option, o.Generic.LeaderElection, sets.FlagSet("generic"), s.Shared))
	for _, name := range s.Disabled {
		if err := checkName(name); err != nil {
			problems = append(problems, err)
			continue
		}
		// The first mention of a name counts.
		o.Generic.Controllers = append([]string{"-" + name}, o.Generic.Controllers...)
	}
	generic := sets.FlagSet("generic")
	return &Upstream{o, s.ClusterCIDRChosen, generic.Changed("kube-api-qps") || generic.Changed("kube-api-burst")}, errors.Join(problems...)
}

// Limit returns the client of a controller with the user's kube-api-qps and kube-api-burst. Without them, requests within this process
// have no limit, as those of informers and for tokens.
func (u *Upstream) Limit(client *rest.Config) *rest.Config {
	if !u.limited {
		return client
	}
	limited := rest.CopyConfig(client)
	limited.QPS, limited.Burst = u.Generic.ClientConnection.QPS, int(u.Generic.ClientConnection.Burst)
	return limited
}

// NewElection returns the election that decides when the controllers run, or nil if they always do.
func (u *Upstream) NewElection(identity string, log *logrus.Logger) *election.Election {
	if !u.Generic.LeaderElection.LeaderElect {
		return nil
	}
	return election.New(election.Config{
		Identity: identity, Settings: u.Generic.LeaderElection, Component: Component, Work: "runs the controllers", Log: log,
	})
}

// Validate returns what kube-controller-manager would refuse. It reads the feature gates of
// the process.
func (u *Upstream) Validate() error {
	if err := u.KubeControllerManagerOptions.Validate(app.KnownControllers(), app.ControllersDisabledByDefault(), app.ControllerAliases()); err != nil {
		return fmt.Errorf("--kube-controller-manager-arg: %w", err)
	}
	if every := u.Generic.MinResyncPeriod.Duration; every > 0 && every < sharedinformers.Resync {
		return fmt.Errorf("--kube-controller-manager-arg: min-resync-period=%v: want %v at least, which is the API server's, whose informers the controllers use, or 0 for none", every, sharedinformers.Resync)
	}
	return u.checkNodeMasks()
}

// Runs reports whether the controller of that name is enabled.
func (u *Upstream) Runs(controller string) bool {
	var enabled []string
	for _, name := range u.Generic.Controllers { // the user's names may be aliases
		bare := strings.TrimPrefix(name, "-")
		if full, ok := app.ControllerAliases()[bare]; ok {
			name = strings.Replace(name, bare, full, 1)
		}
		enabled = append(enabled, name)
	}
	return genericcontrollers.IsControllerEnabled(controller, sets.NewString(), enabled)
}

// RunsDefaults reports whether exactly the controllers that Karve enables by default are
// enabled.
func (u *Upstream) RunsDefaults() bool {
	return slices.Equal(u.Generic.Controllers, append([]string{"*"}, extraControllers...))
}

// UseCertificates fills in the files of store where the user named no others.
func (u *Upstream) UseCertificates(store *certs.Store) {
	set := func(field *string, file string) { *field = cmp.Or(*field, file) }
	set(&u.SAController.ServiceAccountKeyFile, store.KeyFile(certs.ServiceAccount))
	set(&u.SAController.RootCAFile, store.CertFile(certs.ServerCA))
	sign := func(c *signer.CSRSigningConfiguration, cert, key string) {
		set(&c.CertFile, cert)
		set(&c.KeyFile, key)
	}
	// The authority that signs the API server's certificate also signs those of servers. The
	// authority that the API server trusts for clients also signs those of clients. An
	// authority whose key the user keeps elsewhere signs nothing.
	c := u.CSRSigningController
	if c.ClusterSigningCertFile != "" || c.ClusterSigningKeyFile != "" {
		return // the user's authority signs everything; upstream refuses others beside it
	}
	if cert, key := store.SignerFile(certs.ClientCA), store.KeyFile(certs.ClientCA); cert != "" {
		sign(&c.KubeletClientSignerConfiguration, cert, key)
		sign(&c.KubeAPIServerClientSignerConfiguration, cert, key)
	}
	if cert, key := store.SignerFile(certs.ServerCA), store.KeyFile(certs.ServerCA); cert != "" {
		sign(&c.KubeletServingSignerConfiguration, cert, key)
		sign(&c.LegacyUnknownSignerConfiguration, cert, key)
	}
}

func checkName(name string) error {
	known := app.KnownControllers()
	for alias := range app.ControllerAliases() {
		known = append(known, alias)
	}
	if slices.Contains(known, name) {
		return nil
	}
	proposal := ""
	if near := flags.Nearest(name, known); near != "" {
		proposal = fmt.Sprintf("; did you mean %q?", near)
	}
	return fmt.Errorf("--disable-controllers: there is no controller %q%s", name, proposal)
}
