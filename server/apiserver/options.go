// Package apiserver assembles upstream's API server chain — apiextensions,
// kube-apiserver, aggregator — from its exported pieces, and serves it on two
// listeners: the secure one, and the guarded plain one on loopback.
//
// The steps are upstream's (cmd/kube-apiserver/app/server.go) and each is a
// function here, called in order by [New]: options → Complete → Validate → node
// dialer → generic config → apiextensions → kube-apiserver → aggregator →
// insecure chain → PrepareRun; then [Server.Run].
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"time"

	"github.com/emicklei/go-restful/v3"
	"github.com/sirupsen/logrus"
	"go.uber.org/zap"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"

	"github.com/karve-k8s/karve/bootstrap"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/server/apiserver/replacements"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/flags"
	"github.com/karve-k8s/karve/server/insecure"
	"github.com/karve-k8s/karve/server/loopback"
)

// ErrFeatureGates is wrapped by the error of [Validate] and [New] for feature
// gates, or emulated versions, that do not exist.
var ErrFeatureGates = errors.New("--feature-gates")

// Config is what the rest of Karve decides about the API server. Everything
// else is upstream's default, or the user's Args.
type Config struct {
	// SecureListener is bound already; its port is the real one.
	SecureListener net.Listener
	// InsecureListener is bound to loopback already; nil leaves it out.
	InsecureListener net.Listener
	// Insecure guards the insecure listener.
	Insecure insecure.Options
	// Loopback gets the chain's handler once it is built: the API server's own
	// clients, and those of the rest of the process, call it there.
	Loopback *loopback.Server

	// Dial takes the dialler of connections to nodes, Pods and Services, and gives
	// another in its place; nil leaves it.
	Dial func(next DialFunc) DialFunc

	// Group is an API group beside upstream's, made with the shared informers; nil is
	// none. Its APIServices have the priorities of an extension.
	Group func(informers.SharedInformerFactory) *genericapiserver.APIGroupInfo

	// AdvertiseAddress goes into the endpoints of the kubernetes Service. Nil
	// where the machine has no address but loopback's: then the Service keeps
	// no endpoints, instead of an error every ten seconds.
	AdvertiseAddress net.IP
	// ServiceClusterIPRange is one CIDR, or two of different families with a comma.
	ServiceClusterIPRange string
	// ClusterDomain is the DNS domain of the service account issuer.
	ClusterDomain string
	// DisableHTTP2 leaves only HTTP/1.1 on both listeners.
	DisableHTTP2 bool
	// CompressLoopback lets upstream compress what it sends to clients on this
	// machine, as it does for others.
	CompressLoopback bool

	Etcd         Etcd
	Certificates Certificates
	// SingleServer says that no other API server uses this datastore.
	SingleServer bool
	// BuiltIn says that the storage is Karve's own, which knows objects by their keys.
	BuiltIn bool
	// ClockDoubted is asked whether the clock may be set back by hours, when a token
	// is made; nil: never.
	ClockDoubted func() bool

	// TerminationTimeout is how long a stop may take,
	// --shutdown-delay-duration not counted.
	TerminationTimeout time.Duration

	// Store takes the objects of a new cluster before the chain is built; nil
	// leaves them to upstream's hooks and controllers.
	Store bootstrap.Store
	// Bootstrap is what those objects depend on besides.
	Bootstrap bootstrap.Options
	// Deviations are those that run upstream's own code.
	Deviations deviations.Switches

	// Log gets what the etcd clients have to say; nil is nowhere.
	Log *logrus.Logger
	// Step is told each step of a start, and gives a function to call when the step
	// is done; nil is nobody.
	Step func(name string) (done func())
	// Routers is told the router of kube-apiserver, upstream's that it stands for,
	// and the services: for the test that compares the two; nil is nobody.
	Routers func(ours, upstreams restful.RouteSelector, services []*restful.WebService)
	// ReadyChecks are added to /readyz: the parts that are not the API server.
	ReadyChecks []healthz.HealthChecker
	// Args are the user's own upstream options, name=value; they win over the
	// defaults that this package sets.
	Args []string
	// Upstream, if there is one, is a whole configuration of kube-apiserver's
	// (see [Upstream]): none of the options above that upstream has an option for
	// counts then.
	Upstream *options.CompletedOptions
}

// Etcd says where storage is. The files are empty where there is no TLS.
type Etcd struct {
	Endpoints                 []string
	CAFile, CertFile, KeyFile string
}

// Certificates are paths of PEM files. All but the CAs and the service account
// key are read again when they change, without closing a connection.
type Certificates struct {
	// UserCert and UserKey are shown to clients in place of the serving pair,
	// which then is shown to those who ask for localhost or kubernetes by name
	// (SNI): the cluster's own clients trust no other. Empty: there is none.
	UserCert, UserKey                         string
	ServingCert, ServingKey                   string
	ClientCA, FrontProxyCA                    string
	FrontProxyClientCert, FrontProxyClientKey string
	KubeletClientCert, KubeletClientKey       string
	ServiceAccountKey                         string
}

// Upstream's flags that other parts of Karve depend on, and what to use
// instead. They can't be passed through.
var ownedFlags = map[string]string{
	"etcd-servers":         "use --datastore-endpoint",
	"etcd-cafile":          "use --datastore-cafile",
	"etcd-certfile":        "use --datastore-certfile",
	"etcd-keyfile":         "use --datastore-keyfile",
	"bind-address":         "use --bind-address",
	"secure-port":          "use --secure-port",
	"advertise-address":    "use --advertise-address",
	"cert-dir":             "certificates are under the data directory",
	"permit-port-sharing":  "the listener is bound before the API server starts",
	"tls-cert-file":        "use --tls-cert-file",
	"tls-private-key-file": "use --tls-private-key-file",
	"v":                    "use --log-level",
	"vmodule":              "use --log-level",
	"logging-format":       "use --log-format",
	"log-flush-frequency":  "use --log-format",
	"client-ca-file":       "put your client-ca.crt and client-ca.key into the certs directory before the first start",
}

// owned are the flags that can't be passed through with this configuration.
func (c Config) owned() map[string]string {
	if !c.BuiltIn {
		return ownedFlags
	}
	// In an etcd that clusters share, the prefix tells them apart. The built-in
	// datastore holds one cluster, and resets, forks and `karve reset` of a stopped
	// server, which has no options, know its objects by upstream's prefix.
	owned := maps.Clone(ownedFlags)
	owned["etcd-prefix"] = "the built-in datastore holds one cluster, below /registry; leave it out, or name an etcd that clusters share by --datastore-endpoint"
	return owned
}

// watchGrace is how long a stop waits until open watches have been told to end.
// Upstream's default, zero, leaves them open and a stop waits a minute for them.
const watchGrace = 5 * time.Second

// newOptions is step 1: upstream's options with our defaults and the user's
// wishes, and the gates among them, which are not set yet. The error joins every wish
// that upstream's flags refuse.
func newOptions(c Config) (*options.ServerRunOptions, *Gates, error) {
	o := options.NewServerRunOptions()
	process := o.GenericServerRunOptions.ComponentGlobalsRegistry
	trial, err := trialRegistry()
	if err != nil {
		return nil, nil, err
	}
	o.GenericServerRunOptions.ComponentGlobalsRegistry = trial
	sets := o.Flags() // first, because making a flag gives its field the flag's default
	o.GenericServerRunOptions.ComponentGlobalsRegistry = process

	o.SecureServing.Listener = c.SecureListener
	o.SecureServing.DisableHTTP2Serving = c.DisableHTTP2
	o.SecureServing.HTTP2MaxStreamsPerConnection = insecure.DefaultMaxConcurrentStreams
	o.SecureServing.ServerCert.CertKey.CertFile = c.Certificates.ServingCert
	o.SecureServing.ServerCert.CertKey.KeyFile = c.Certificates.ServingKey
	if c.Certificates.UserCert != "" {
		o.SecureServing.ServerCert.CertKey.CertFile = c.Certificates.UserCert
		o.SecureServing.ServerCert.CertKey.KeyFile = c.Certificates.UserKey
		o.SecureServing.SNICertKeys = []cliflag.NamedCertKey{{
			Names:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc." + c.ClusterDomain},
			CertFile: c.Certificates.ServingCert, KeyFile: c.Certificates.ServingKey,
		}}
	}
	if c.SecureListener != nil {
		address := c.SecureListener.Addr().(*net.TCPAddr)
		o.SecureServing.BindAddress, o.SecureServing.BindPort = address.IP, address.Port
	}
	o.GenericServerRunOptions.AdvertiseAddress = c.AdvertiseAddress
	o.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = watchGrace
	if c.AdvertiseAddress == nil {
		o.GenericServerRunOptions.AdvertiseAddress = net.IPv4(127, 0, 0, 1)
		o.EndpointReconcilerType = string(reconcilers.NoneEndpointReconcilerType)
	}

	if c.SingleServer && c.AdvertiseAddress != nil && c.Deviations.On(deviations.SingleServer) {
		replacements.WithoutEndpointLease(o)
	}

	o.Etcd.StorageConfig.Transport.ServerList = c.Etcd.Endpoints
	o.Etcd.StorageConfig.Transport.TrustedCAFile = c.Etcd.CAFile
	o.Etcd.StorageConfig.Transport.CertFile = c.Etcd.CertFile
	o.Etcd.StorageConfig.Transport.KeyFile = c.Etcd.KeyFile

	o.Authentication.ClientCert.ClientCA = c.Certificates.ClientCA
	o.Authentication.BootstrapToken.Enable = true
	o.Authentication.ServiceAccounts.Issuers = []string{"https://kubernetes.default.svc." + c.ClusterDomain}
	o.Authentication.ServiceAccounts.KeyFiles = []string{c.Certificates.ServiceAccountKey}
	o.ServiceAccountSigningKeyFile = c.Certificates.ServiceAccountKey
	header := o.Authentication.RequestHeader
	header.ClientCAFile = c.Certificates.FrontProxyCA
	header.AllowedNames = []string{"front-proxy-client"}
	header.UsernameHeaders = []string{"X-Remote-User"}
	header.UIDHeaders = []string{"X-Remote-Uid"}
	header.GroupHeaders = []string{"X-Remote-Group"}
	header.ExtraHeaderPrefixes = []string{"X-Remote-Extra-"}
	o.ProxyClientCertFile = c.Certificates.FrontProxyClientCert
	o.ProxyClientKeyFile = c.Certificates.FrontProxyClientKey
	o.Authorization.Modes = []string{modes.ModeNode, modes.ModeRBAC}

	o.KubeletConfig.TLSClientConfig.CertFile = c.Certificates.KubeletClientCert
	o.KubeletConfig.TLSClientConfig.KeyFile = c.Certificates.KubeletClientKey
	// Boards and laptops have host names that no DNS knows.
	o.KubeletConfig.PreferredAddressTypes = []string{"InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS"}

	o.AllowPrivileged = true // as kubeadm and k3s set it: Pod Security decides
	o.ServiceClusterIPRanges = c.ServiceClusterIPRange
	// Without a kube-proxy on this machine a cluster IP leads nowhere: go to
	// the endpoints, as k3s does.
	o.EnableAggregatorRouting = true

	own := o.SecureServing.SNICertKeys
	o.SecureServing.SNICertKeys = nil // the user's first one would replace it
	err = flags.Apply("kube-apiserver", "kube-apiserver-arg", sets, c.owned(), c.Args)
	o.SecureServing.SNICertKeys = append(o.SecureServing.SNICertKeys, own...)
	gates, refused := gatesOf(trial)

	// The Node authorizer is half a rule without it, as kubeadm sets it. Not
	// before the user's wishes: --enable-admission-plugins would replace it.
	if plugins := o.Admission.GenericAdmission; !slices.Contains(plugins.EnablePlugins, noderestriction.PluginName) &&
		!slices.Contains(plugins.DisablePlugins, noderestriction.PluginName) {
		plugins.EnablePlugins = append(plugins.EnablePlugins, noderestriction.PluginName)
	}
	return o, gates, errors.Join(err, refused)
}

// Validate tells what upstream would refuse about the options, all at once. It
// opens nothing and writes nothing but a throw-away file, in memory where the system can
// do that, and otherwise in dir: c needs neither listeners nor certificates yet. An empty
// dir is that of temporary files.
func Validate(ctx context.Context, c Config, throwAwayKey []byte, dir string) error {
	key, remove, err := throwAwayFile(dir, throwAwayKey)
	if err != nil {
		return fmt.Errorf("write a key to check the configuration with: %w", err)
	}
	defer remove()
	c.Certificates.ServiceAccountKey = key
	c.Certificates.ServingCert, c.Certificates.ServingKey = key, key
	c.Certificates.FrontProxyCA, c.Certificates.ClientCA = key, key
	c.Etcd.Endpoints = []string{"unix:///"}
	_, err = complete(ctx, c)
	return err
}

// temporaryFile makes a file in dir, mode 0600, until it is removed.
func temporaryFile(dir string, content []byte) (path string, remove func(), err error) {
	f, err := os.CreateTemp(dir, ".check-")
	if err != nil {
		return "", nil, err
	}
	_, err = f.Write(content)
	if err := errors.Join(err, f.Close()); err != nil {
		os.Remove(f.Name())
		return "", nil, err
	}
	return f.Name(), func() { os.Remove(f.Name()) }, nil
}

// complete is steps 1 to 3: options, Complete, Validate.
//
// Upstream reads the process' gates while it completes and validates, so they are held
// for that long at least.
func complete(ctx context.Context, c Config) (options.CompletedOptions, error) {
	o, gates, err := newOptions(c)
	if err != nil {
		return options.CompletedOptions{}, err
	}
	release, err := gates.Hold()
	if err != nil {
		return options.CompletedOptions{}, err
	}
	defer release()
	doubted := c.ClockDoubted
	if !c.Deviations.On(deviations.TokenBackdate) {
		doubted = nil
	}
	return completeOptions(ctx, o, doubted)
}

func completeOptions(ctx context.Context, o *options.ServerRunOptions, clockDoubted func() bool) (options.CompletedOptions, error) {
	completed, err := o.Complete(ctx)
	if err != nil {
		return options.CompletedOptions{}, err
	}
	// Without the file a user's own signer makes the tokens.
	if completed.ServiceAccountSigningKeyFile != "" && clockDoubted != nil {
		completed.ServiceAccountIssuer = replacements.BackdateTokens(completed.ServiceAccountIssuer, clockDoubted)
	}
	return completed, errors.Join(completed.Validate()...)
}

// prepareProcess does what upstream's cobra command does before it runs
// (cmd/kube-apiserver/app/server.go), but for feature gates, which are set already:
// warnings and loggers are global to the process, so several servers in one process share
// them, the last one's.
func prepareProcess(log *logrus.Logger, switches deviations.Switches) {
	etcdLogger = zap.NewNop()
	if log != nil {
		etcdLogger = logbridge.Zap(log, "etcd")
	}
	// The server's own clients would log warnings about the server's own APIs.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	replacements.RenewIdentityRarely(switches.On(deviations.SingleServer))
	registry := genericoptions.NewServerRunOptions().ComponentGlobalsRegistry
	if gates, ok := registry.FeatureGateFor(basecompatibility.DefaultKubeComponent).(featuregate.MutableFeatureGate); ok {
		gates.AddMetrics()
	}
	registry.AddMetrics()
}
