// Package apiserver assembles upstream's API server chain — apiextensions, kube-apiserver,
// aggregator — from its exported pieces. It serves the chain on two listeners: the secure one,
// and the guarded plain-text one on loopback.
//
// The steps are upstream's (cmd/kube-apiserver/app/server.go). Each is a function here, and
// [New] calls them in order: options → Complete → Validate → node dialer → generic config →
// apiextensions → kube-apiserver → aggregator → insecure chain → PrepareRun. Then comes
// [Server.Run].
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"github.com/emicklei/go-restful/v3"
	"github.com/sirupsen/logrus"
	"k8s.io/apiserver/pkg/features"
	genericapiserver "k8s.io/apiserver/pkg/server"
	"k8s.io/apiserver/pkg/server/flagz"
	"k8s.io/apiserver/pkg/server/healthz"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/apiserver/pkg/server/resourceconfig"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/rest"
	cliflag "k8s.io/component-base/cli/flag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer/modes"
	"k8s.io/kubernetes/plugin/pkg/admission/noderestriction"

	"github.com/karve-k8s/karve/bootstrap"
	"github.com/karve-k8s/karve/server/apiserver/egress"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/flags"
	"github.com/karve-k8s/karve/server/insecure"
	"github.com/karve-k8s/karve/server/loopback"
)

// ErrFeatureGates is wrapped by the error of [Validate] and [New] for feature gates or
// emulated versions that do not exist.
var ErrFeatureGates = errors.New("--feature-gates")

// Config is what the rest of Karve decides about the API server. Everything else is upstream's
// default or comes from the user's Args.
type Config struct {
	// SecureListener is bound already, so its port is final.
	SecureListener net.Listener
	// InsecureListener is bound to loopback already. Nil: no insecure port.
	InsecureListener net.Listener
	// Socket is for users of this machine, whose groups SocketGroups maps. Nil: there is none.
	Socket       net.Listener
	SocketGroups insecure.Groups
	// Insecure guards the insecure listener.
	Insecure insecure.Options
	// Loopback gets the chain's handler once it is built. The API server's own clients, and
	// those of the other parts of this process, call the handler there.
	Loopback *loopback.Server

	// Dial wraps the dialer of connections to nodes, Pods and Services. It is the user's egress
	// selector's for the cluster, if there is one. Nil: the dialer stays as it is.
	Dial func(next egress.DialFunc) egress.DialFunc

	// Group returns an API group beside upstream's, made with the shared informers. Its
	// APIServices have the priorities of an extension. Nil: no such group.
	Group func(informers.SharedInformerFactory) *genericapiserver.APIGroupInfo

	// Advertised returns the address for the endpoints of the kubernetes Service, every ten seconds. It
	// returns nil while the machine has only loopback addresses. If it is nil itself, the Service has no endpoints.
	Advertised func() net.IP
	// ServiceClusterIPRange is one CIDR, or two of different families separated by a comma.
	ServiceClusterIPRange string
	// ClusterDomain is the DNS domain in the service account issuer.
	ClusterDomain string
	// DisableHTTP2 leaves only HTTP/1.1 on both listeners.
	DisableHTTP2 bool

	Etcd         Etcd
	Certificates Certificates
	// SingleServer means that no other API server uses this datastore.
	SingleServer bool
	// Identity is the name of the API server's Lease among several. Empty: upstream's, a hash of the host name.
	Identity string
	// NodeIssuer is the annotation of nodes' Leases that gets the name of the authority of the certificate with which the
	// node has come. Empty: none does.
	NodeIssuer string
	// BuiltIn means that the storage is Karve's own datastore, which knows objects by their
	// keys.
	BuiltIn bool

	// TerminationTimeout limits how long a stop may take, not counting
	// --shutdown-delay-duration.
	TerminationTimeout time.Duration

	// Store takes the objects of a new cluster before the chain is built. Nil: upstream's
	// hooks and controllers create them.
	Store bootstrap.Store
	// Bootstrap is what those objects depend on apart from the API server's configuration.
	Bootstrap bootstrap.Options
	// Deviations are the switches of the places where Karve's own code runs instead of
	// upstream's.
	Deviations deviations.Switches

	// Log gets what is wrong with stored versions.
	Log *logrus.Logger
	// Routers is called with the router of kube-apiserver, upstream's router that it replaces,
	// and the web services, so that a test can compare the two routers. Nil: no call.
	Routers func(ours, upstreams restful.RouteSelector, services []*restful.WebService)
	// Page is served at PagePath to whom the authorizer allows it: administrators, unless a role says otherwise. Nil: there is none.
	Page     http.Handler
	PagePath string
	// Seen is called for each request. Nil: no call.
	Seen func()
	// ReadyChecks are added to /readyz for the parts other than the API server.
	ReadyChecks []healthz.HealthChecker
	// Args are the user's own kube-apiserver options, name=value. They override the defaults
	// that this package sets.
	Args []string
	// Upstream is a complete configuration of kube-apiserver (see [Upstream]). If it is set,
	// it replaces every field above for which upstream has an option.
	Upstream *options.CompletedOptions
}

// Etcd is the address of the storage. The files are empty without TLS.
type Etcd struct {
	Endpoints                 []string
	CAFile, CertFile, KeyFile string
}

// Certificates are paths of PEM files. When one changes, the server reads it again and closes
// no connection, except for the CAs and the service account key.
type Certificates struct {
	// UserCert and UserKey are served to clients in place of the serving pair. Clients that
	// ask for localhost or kubernetes by name (SNI) still get the serving pair, because the
	// cluster's own clients trust no other. Both are empty if there is no such pair.
	UserCert, UserKey                         string
	ServingCert, ServingKey                   string
	ClientCA, FrontProxyCA                    string
	FrontProxyClientCert, FrontProxyClientKey string
	KubeletClientCert, KubeletClientKey       string
	ServiceAccountKey                         string
}

const bound = "the listener is bound before the API server starts"

// ownedFlags are upstream's flags that other parts of Karve depend on or that have no effect, with what to use
// instead. A user cannot pass them through.
var ownedFlags = map[string]string{
	"service-cluster-ip-range": "use --service-cluster-ip-range",
	"etcd-servers":             "use --datastore-endpoint",
	"etcd-cafile":              "use --datastore-cafile",
	"etcd-certfile":            "use --datastore-certfile",
	"etcd-keyfile":             "use --datastore-keyfile",
	"bind-address":             "use --bind-address",
	"secure-port":              "use --secure-port",
	"advertise-address":        "use --advertise-address",
	"cert-dir":                 "certificates are under the data directory",
	"permit-port-sharing":      bound,
	"permit-address-sharing":   bound,
	"tls-cert-file":            "use --tls-cert-file",
	"tls-private-key-file":     "use --tls-private-key-file",
	"[logs]":                   "use --log-level and --log-format",
	"client-ca-file":           "put your client-ca.crt and client-ca.key into the certs directory before the first start",
}

// owned returns the flags that a user cannot pass through with this configuration.
func (c Config) owned() map[string]string {
	if !c.BuiltIn {
		return ownedFlags
	}
	// The prefix separates the clusters that share an etcd. The built-in datastore holds one
	// cluster. Resets, forks and `karve reset` of a stopped server, which has no options, find
	// its objects under upstream's prefix.
	owned := maps.Clone(ownedFlags)
	owned["etcd-prefix"] = "the built-in datastore holds one cluster, below /registry; leave it out, or name an etcd that clusters share by --datastore-endpoint"
	return owned
}

// watchGrace is how long a stop waits until open watches have been ended. With upstream's
// default, zero, watches stay open and delay the stop by a minute.
const watchGrace = 5 * time.Second

// newOptions is step 1. It returns upstream's options with Karve's defaults and the user's
// values, and the gates among them, which are not set yet. The error joins every value that
// upstream's flags refuse.
func newOptions(c Config) (*options.ServerRunOptions, *Gates, error) {
	o := options.NewServerRunOptions()
	process := o.GenericServerRunOptions.ComponentGlobalsRegistry
	trial, err := trialRegistry()
	if err != nil {
		return nil, nil, err
	}
	o.GenericServerRunOptions.ComponentGlobalsRegistry = trial
	sets := o.Flags() // first, because creating a flag sets its field to the flag's default
	o.Flagz = flagz.NamedFlagSetsReader{FlagSets: sets}
	for _, urls := range []string{"etcd-servers", "etcd-servers-overrides"} { // they may have passwords
		if err := sets.FlagSet("etcd").SetAnnotation(urls, "classified", []string{"true"}); err != nil {
			return nil, nil, err
		}
	}
	o.GenericServerRunOptions.ComponentGlobalsRegistry = process

	o.SecureServing.Listener = c.SecureListener
	o.SecureServing.DisableHTTP2Serving = c.DisableHTTP2
	o.SecureServing.HTTP2MaxStreamsPerConnection = insecure.MaxConcurrentStreams
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
	o.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = watchGrace
	o.GenericServerRunOptions.AdvertiseAddress = c.advertised()
	switch {
	case c.Advertised == nil:
		o.EndpointReconcilerType = string(reconcilers.NoneEndpointReconcilerType)
	case c.SingleServer && c.Deviations.On(deviations.SingleServer):
		// No lease is written every ten seconds, and the addresses of earlier starts are removed immediately.
		o.EndpointReconcilerType = string(reconcilers.MasterCountReconcilerType)
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
	// Boards and laptops often have host names that DNS cannot resolve.
	o.KubeletConfig.PreferredAddressTypes = []string{"InternalIP", "ExternalIP", "Hostname", "InternalDNS", "ExternalDNS"}

	o.AllowPrivileged = true // like kubeadm and k3s: Pod Security decides
	o.ServiceClusterIPRanges = c.ServiceClusterIPRange
	// Without a kube-proxy on this machine, a cluster IP is not reachable. Like k3s, connect
	// to the endpoints instead.
	o.EnableAggregatorRouting = true

	own := o.SecureServing.SNICertKeys
	o.SecureServing.SNICertKeys = nil // otherwise the user's first one would replace it
	err = flags.Apply("kube-apiserver", "kube-apiserver-arg", sets, c.owned(), c.Args)
	o.SecureServing.SNICertKeys = append(o.SecureServing.SNICertKeys, own...)
	gates, refused := gatesOf(trial)
	// Upstream refuses this option without its gate, so the default follows the gate.
	if refused == nil && !gates.gates.Enabled(features.RemoteRequestHeaderUID) && !sets.FlagSet("authentication").Changed("requestheader-uid-headers") {
		header.UIDHeaders = nil
	}

	// The Node authorizer is incomplete without this plugin, so kubeadm enables it too. It is
	// added after the user's options, because --enable-admission-plugins would replace it.
	if plugins := o.Admission.GenericAdmission; !slices.Contains(plugins.EnablePlugins, noderestriction.PluginName) &&
		!slices.Contains(plugins.DisablePlugins, noderestriction.PluginName) {
		plugins.EnablePlugins = append(plugins.EnablePlugins, noderestriction.PluginName)
	}
	return o, gates, errors.Join(err, refused)
}

// Validate returns everything that upstream would refuse about the options, but for files that [CheckFiles] refuses, as one error. It
// opens nothing and writes only a temporary file: in memory if there is /dev/shm, so that a full disk does not make a configuration
// invalid, and otherwise in dir or, if that cannot be used, in the system's directory for temporary files. So c
// needs neither listeners nor certificates yet.
func Validate(ctx context.Context, c Config, throwAwayKey []byte, dir string) error {
	key, remove, err := temporaryFile(throwAwayKey, "/dev/shm", dir, "")
	if err != nil {
		return fmt.Errorf("write a temporary key for checking the configuration: %w", err)
	}
	defer remove()
	c.Certificates.ServiceAccountKey = key
	c.Certificates.ServingCert, c.Certificates.ServingKey = key, key
	c.Certificates.FrontProxyCA, c.Certificates.ClientCA = key, key
	c.Etcd.Endpoints = []string{"unix:///"}
	check := func(args []string) error {
		c.Args = args
		completed, err := complete(ctx, c)
		if err == nil { // upstream looks at this only when it builds the server
			_, err = resourceconfig.MergeAPIResourceConfigs(controlplane.DefaultAPIResourceConfigSource(), completed.APIEnablement.RuntimeConfig, legacyscheme.Scheme)
		}
		return err
	}
	return blame(check(c.Args), c.Args, check)
}

// temporaryFile creates a file with mode 0600 in the first directory in which it can; empty is the system's. remove deletes it.
func temporaryFile(content []byte, dirs ...string) (path string, remove func(), err error) {
	for _, dir := range dirs {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".karve-check-"); err != nil {
			continue
		}
		remove = func() { os.Remove(f.Name()) }
		_, err = f.Write(content)
		if err = errors.Join(err, f.Close()); err == nil {
			return f.Name(), remove, nil
		}
		remove()
	}
	return "", nil, err
}

// complete is steps 1 to 3: options, Complete, Validate.
//
// Upstream reads the process' gates while it completes and validates, so complete holds them
// for that time.
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
	return completeOptions(ctx, o)
}

func completeOptions(ctx context.Context, o *options.ServerRunOptions) (options.CompletedOptions, error) {
	completed, err := o.Complete(ctx)
	if err != nil {
		return options.CompletedOptions{}, err
	}
	return completed, errors.Join(completed.Validate()...)
}

// prepareProcess does what upstream's cobra command does before it runs
// (cmd/kube-apiserver/app/server.go), except for feature gates, which are set already.
func prepareProcess() {
	// Otherwise the server's own clients would log warnings about the server's own APIs.
	rest.SetDefaultWarningHandler(rest.NoWarnings{})
	registry := genericoptions.NewServerRunOptions().ComponentGlobalsRegistry
	if gates, ok := registry.FeatureGateFor(basecompatibility.DefaultKubeComponent).(featuregate.MutableFeatureGate); ok {
		gates.AddMetrics()
	}
	registry.AddMetrics()
}
