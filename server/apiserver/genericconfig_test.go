package apiserver

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	apiextensionsserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/runtime"
	genericapiserver "k8s.io/apiserver/pkg/server"
	serverstorage "k8s.io/apiserver/pkg/server/storage"
	"k8s.io/client-go/informers"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/controlplane"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	generatedopenapi "k8s.io/kubernetes/pkg/generated/openapi"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/loopback"
)

// everything is what upstream's function or Karve's returns, and the options that it changes.
type everything struct {
	Config    *genericapiserver.Config
	Informers informers.SharedInformerFactory
	Storage   *serverstorage.DefaultStorageFactory
	Options   options.CompletedOptions
}

// unordered matches what upstream reads from a map, and what is too large to compare in full:
// for type definitions, only the names are compared.
var unordered = regexp.MustCompile(`(\.WatchCacheSizes|\["watch-cache-sizes"\]\.Value\.value)\[\d\]$|^\.Config\.OpenAPIV3Config\.Definitions\["[^"]*"\]\.`)

// loopbackOnly matches what is Karve's own: how the server's own clients reach it, and their
// certificates and tokens. It also matches the name of the function that makes cached objects
// smaller.
var loopbackOnly = regexp.MustCompile(`^\.Config\.LoopbackClientConfig\.(WrapTransport|BearerToken|TLSClientConfig\.CAData)$` +
	`|^\.Config\.SecureServing\.SNICerts\[0\]\.staticCertKeyContent\.(cert|key)$` +
	`|^\.Config\.HealthzChecks\[2\]\.check$` +
	`|\.client\.DiscoveryClient\.restClient\.Client\.Transport\.rt\.(rt|bearer)$` +
	`|\.VersionedInformerFactory\.(informers\[a reflect.Type\]\.(SharedIndexInformer\.)?)?transform$|^\.Informers\.transform$`)

// The generic configuration is upstream's except for the server's own clients. The test
// compares every field of it, everything that the fields refer to, and the options that it is
// made from.
func TestGenericConfigIsUpstreams(t *testing.T) {
	dir := t.TempDir()
	egress := written(t, `{"apiVersion": "apiserver.k8s.io/v1beta1", "kind": "EgressSelectorConfiguration", "egressSelections": [{"name": "cluster", "connection": {"proxyProtocol": "Direct"}}]}`)
	for name, args := range map[string][]string{
		"default":                              nil,
		"without RBAC":                         {"authorization-mode=AlwaysAllow"},
		"other APIs":                           {"runtime-config=api/beta=true,batch/v1=false", "storage-media-type=application/json", "etcd-prefix=/elsewhere"},
		"other gates":                          {"feature-gates=AllBeta=true"},
		"an older one":                         {"emulated-version=1.36"},
		"audit, egress":                        {"audit-log-path=" + filepath.Join(dir, "audit.log"), "audit-policy-file=" + auditPolicy(t), "egress-selector-config-file=" + egress},
		deviations.GenericConfig.Name + " off": nil,
		"nobody, no flow":                      {"max-requests-inflight=7", "enable-priority-and-fairness=false", "anonymous-auth=false", "profiling=false", "contention-profiling=true"},
	} {
		t.Run(name, func(t *testing.T) {
			c := chainConfig(t, args)
			if off, ok := strings.CutSuffix(name, " off"); ok {
				var err error
				if c.Deviations, err = deviations.Parse([]string{off}); err != nil {
					t.Fatal(err)
				}
			}
			c.Loopback = loopback.NewServer(t.Logf)
			defer c.Loopback.Close()
			gates, err := GatesOf(c)
			if err != nil {
				t.Fatal(err)
			}
			release, err := gates.Hold()
			if err != nil {
				t.Fatal(err)
			}
			defer release()
			o, err := complete(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			ours, err := c.genericConfig(o.CompletedOptions, nil, nil, schemes)
			if err != nil {
				t.Fatal(err)
			}
			ours.Wait()
			got := &everything{ours.Config, ours.Informers, ours.Storage, o}
			if o, err = complete(t.Context(), c); err != nil {
				t.Fatal(err)
			}
			config, informers, storage, err := controlplaneapiserver.BuildGenericConfig(o.CompletedOptions, schemes, controlplane.DefaultAPIResourceConfigSource(), generatedopenapi.GetOpenAPIDefinitions, nil)
			if err != nil {
				t.Fatal(err)
			}
			d := newDifference(loopbackOnly, unordered)
			d.compare("", reflect.ValueOf(got), reflect.ValueOf(&everything{config, informers, storage, o}))
			for _, found := range d.found {
				t.Error(found)
			}
			if d.compared < 1000 || len(d.excepted) < 6 {
				t.Errorf("only %d values were compared and %d are different on purpose: what has moved?", d.compared, len(d.excepted))
			}
			sameLoopback(t, ours.Config, config)
		})
	}
}

// written returns the path of a new file with that content.
func written(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func auditPolicy(t *testing.T) string {
	return written(t, `{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": [{"level": "Metadata"}]}`)
}

// sameLoopback compares the parts that differ: each client trusts only its server's
// certificate, and Karve's is valid for at least as long as upstream's.
func sameLoopback(t *testing.T, got, want *genericapiserver.Config) {
	t.Helper()
	certificate := func(c *genericapiserver.Config) *x509.Certificate {
		pair, err := tls.X509KeyPair(c.SecureServing.SNICerts[0].CurrentCertKeyContent())
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf
	}
	verify := func(c *genericapiserver.Config, shown *x509.Certificate) error {
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(c.LoopbackClientConfig.CAData)
		_, err := shown.Verify(x509.VerifyOptions{Roots: roots, DNSName: c.LoopbackClientConfig.ServerName})
		return err
	}
	if err := verify(got, certificate(got)); err != nil {
		t.Error(err)
	}
	if err := verify(got, certificate(want)); err == nil {
		t.Error("the server's own client trusts another server's certificate")
	}
	if got, want := certificate(got).NotAfter, certificate(want).NotAfter; got.Before(want.Add(-time.Minute)) { // made a moment earlier
		t.Errorf("the certificate ends %v before upstream's", want.Sub(got))
	}
	if got.LoopbackClientConfig.BearerToken == "" || got.LoopbackClientConfig.BearerToken == want.LoopbackClientConfig.BearerToken {
		t.Error("the token is not one of its own")
	}
	for i, check := range want.HealthzChecks {
		if name := got.HealthzChecks[i].Name(); name != check.Name() {
			t.Errorf("health check %d: got %s, want %s", i, name, check.Name())
		}
	}
	if err := got.HealthzChecks[2].Check(nil); err != nil || got.HealthzChecks[2].Name() != "loopback-serving-certificate" {
		t.Errorf("health check %s: %v", got.HealthzChecks[2].Name(), err)
	}
}

var schemes = []*runtime.Scheme{legacyscheme.Scheme, apiextensionsserver.Scheme, aggregatorscheme.Scheme}

// chainConfig returns a configuration from which a chain can be built.
func chainConfig(t *testing.T, args []string) Config {
	t.Helper()
	store, _, err := certs.Ensure(certs.Config{Dir: t.TempDir(), NoSync: true, ServiceIPs: []net.IP{net.IPv4(10, 0, 0, 1)}})
	if err != nil {
		t.Fatal(err)
	}
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { engine.Close() })
	shim, err := kine.Serve(t.Context(), engine, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shim.Close() })
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	return Config{
		SecureListener: listener, ServiceClusterIPRange: "10.0.0.0/24", ClusterDomain: "cluster.local", SingleServer: true,
		Etcd: Etcd{Endpoints: []string{shim.LocalEndpoint()}}, Log: logrus.New(), Args: args,
		Certificates: Certificates{
			ServingCert: store.CertFile(certs.Serving), ServingKey: store.KeyFile(certs.Serving),
			ClientCA: store.CertFile(certs.ClientCA), FrontProxyCA: store.CertFile(certs.FrontProxyCA),
			FrontProxyClientCert: store.CertFile(certs.FrontProxyClient), FrontProxyClientKey: store.KeyFile(certs.FrontProxyClient),
			KubeletClientCert: store.CertFile(certs.KubeletClient), KubeletClientKey: store.KeyFile(certs.KubeletClient),
			ServiceAccountKey: store.KeyFile(certs.ServiceAccount),
		},
	}
}
