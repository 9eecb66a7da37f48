package addons

import (
	"io"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/diff"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/clientcmd"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm/v1beta4"
	"k8s.io/kubernetes/cmd/kubeadm/app/componentconfigs"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/addons/dns"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/addons/proxy"
	kubeadmutil "k8s.io/kubernetes/cmd/kubeadm/app/util/config"

	"github.com/karve-k8s/karve/internal/version"
)

// configurations are those of kubeadm that lead to other objects.
var configurations = []struct {
	name, advertise, endpoint, services, pods, domain, repository string
	mode                                                          string
}{
	{name: "IPv4", advertise: "192.0.2.1", services: "10.96.0.0/12", pods: "10.244.0.0/16", domain: "cluster.local"},
	{name: "IPv6", advertise: "2001:db8::1", services: "fd00:10:96::/112", pods: "fd00:10:244::/56", domain: "cluster.local"},
	{name: "dual stack", advertise: "192.0.2.1", services: "10.96.0.0/12,fd00:10:96::/112", pods: "10.244.0.0/16,fd00:10:244::/56", domain: "cluster.local"},
	{name: "dual stack, IPv6 first", advertise: "2001:db8::1", services: "fd00:10:96::/112,10.96.0.0/12", pods: "fd00:10:244::/56,10.244.0.0/16", domain: "cluster.local"},
	{name: "no Pod range", advertise: "192.0.2.1", services: "10.96.0.0/12", domain: "cluster.local"},
	{name: "another repository", advertise: "192.0.2.1", services: "10.96.0.0/12", domain: "cluster.local", repository: "registry.example.org/k8s"},
	{name: "another domain and range", advertise: "192.0.2.1", services: "172.16.3.0/24", domain: "k8s.example.org"},
	{name: "nftables", advertise: "192.0.2.1", services: "10.96.0.0/12", domain: "cluster.local", mode: "nftables"},
	{name: "ipvs", advertise: "192.0.2.1", services: "10.96.0.0/12", domain: "cluster.local", mode: "ipvs"},
	{name: "an endpoint", advertise: "192.0.2.1", endpoint: "api.example.org:6443", services: "10.96.0.0/12", domain: "cluster.local"},
}

// The objects are those that kubeadm's own phases create, apart from what [canonical] says.
func TestObjectsAreKubeadms(t *testing.T) {
	for _, variable := range []string{"http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"} {
		t.Setenv(variable, "") // kubeadm gives its own to kube-proxy
	}
	for _, c := range configurations {
		t.Run(c.name, func(t *testing.T) {
			init, err := kubeadmutil.DefaultedInitConfiguration(
				&v1beta4.InitConfiguration{LocalAPIEndpoint: v1beta4.APIEndpoint{AdvertiseAddress: c.advertise}, NodeRegistration: v1beta4.NodeRegistrationOptions{Name: "server", CRISocket: constants.DefaultCRISocket}},
				&v1beta4.ClusterConfiguration{
					KubernetesVersion: version.Kubernetes, ImageRepository: c.repository, ControlPlaneEndpoint: c.endpoint,
					Networking: v1beta4.Networking{ServiceSubnet: c.services, PodSubnet: c.pods, DNSDomain: c.domain},
				},
				kubeadmutil.LoadOrDefaultConfigurationOptions{SkipCRIDetect: true})
			if err != nil {
				t.Fatal(err)
			}
			if c.mode != "" {
				init.ComponentConfigs[componentconfigs.KubeProxyGroup].Get().(*kubeproxyconfig.KubeProxyConfiguration).Mode = kubeproxyconfig.ProxyMode(c.mode)
			}
			server := "https://" + netip.AddrPortFrom(netip.MustParseAddr(c.advertise), 6443).String()
			if c.endpoint != "" {
				server = "https://" + c.endpoint
			}
			first, _, _ := strings.Cut(c.services, ",")
			settings := Settings{
				Server: server, ServiceRange: first, ClusterCIDR: c.pods, ClusterDomain: c.domain,
				Version: version.Kubernetes, ImageRepository: c.repository, ProxyMode: c.mode,
			}
			for _, name := range Names {
				want := kubeadms(t, name, init)
				objects, err := Objects(name, settings)
				if err != nil {
					t.Fatal(err)
				}
				got := typed(t, objects)
				for key := range want {
					if got[key] == nil {
						t.Errorf("%s: kubeadm makes %s, Karve does not", name, key)
					}
				}
				for key, o := range got {
					switch {
					case want[key] == nil:
						t.Errorf("%s: Karve makes %s, kubeadm does not", name, key)
					case !reflect.DeepEqual(want[key], o):
						t.Errorf("%s: %s differs (-kubeadm +karve):\n%s", name, key, diff.Diff(want[key], o))
					}
				}
			}
		})
	}
}

// kubeadms are the objects that kubeadm's phase creates, by kind and name.
func kubeadms(t *testing.T, name string, c *kubeadmapi.InitConfiguration) map[string]runtime.Object {
	t.Helper()
	client := fake.NewClientset()
	var err error
	if name == KubeProxy {
		err = proxy.EnsureProxyAddon(&c.ClusterConfiguration, &c.LocalAPIEndpoint, client, "", io.Discard, false)
	} else {
		err = dns.EnsureDNSAddon(&c.ClusterConfiguration, client, "", io.Discard, false)
	}
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]runtime.Object{}
	for _, a := range client.Actions() {
		if create, ok := a.(clienttesting.CreateAction); ok {
			key, o := canonical(t, create.GetObject())
			objects[key] = o
		} else if !slices.Contains([]string{"get", "list"}, a.GetVerb()) {
			t.Errorf("kubeadm's phase does %s %s in a new cluster, and this test knows only create", a.GetVerb(), a.GetResource())
		}
	}
	if len(objects) == 0 {
		t.Fatalf("kubeadm's phase for %s created nothing", name)
	}
	return objects
}

// typed are Karve's objects with their types. A field that a type does not have is an error.
func typed(t *testing.T, objects []*unstructured.Unstructured) map[string]runtime.Object {
	t.Helper()
	all := map[string]runtime.Object{}
	for _, u := range objects {
		o, err := scheme.Scheme.New(u.GroupVersionKind())
		if err != nil {
			t.Fatal(err)
		}
		if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(u.Object, o, true); err != nil {
			t.Fatalf("%s: %v", nameOf(u), err)
		}
		key, o := canonical(t, o)
		all[key] = o
	}
	return all
}

// canonical takes away what differs on purpose, and returns the kind and name.
func canonical(t *testing.T, o runtime.Object) (string, runtime.Object) {
	t.Helper()
	o = o.DeepCopyObject()
	kinds, _, err := scheme.Scheme.ObjectKinds(o)
	if err != nil {
		t.Fatal(err)
	}
	o.GetObjectKind().SetGroupVersionKind(kinds[0])
	m, err := meta.Accessor(o)
	if err != nil {
		t.Fatal(err)
	}
	m.SetResourceVersion("") // kubeadm updates Services without having read them
	annotations := m.GetAnnotations()
	delete(annotations, constants.ComponentConfigHashAnnotationKey) // for kubeadm upgrade, which does not upgrade this cluster
	if len(annotations) == 0 {
		m.SetAnnotations(nil)
	}
	u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
	if err != nil {
		t.Fatal(err)
	}
	if kinds[0].Kind == "DaemonSet" {
		unstructured.RemoveNestedField(u, "spec", "template", "metadata", "annotations")
	}
	// The same kubeconfig may be written in more than one way.
	if text, found, _ := unstructured.NestedString(u, "data", "kubeconfig.conf"); found {
		config, err := clientcmd.Load([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		written, err := clientcmd.Write(*config)
		if err != nil {
			t.Fatal(err)
		}
		if err := unstructured.SetNestedField(u, string(written), "data", "kubeconfig.conf"); err != nil {
			t.Fatal(err)
		}
	}
	fresh, err := scheme.Scheme.New(kinds[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u, fresh); err != nil {
		t.Fatal(err)
	}
	return kinds[0].Kind + " " + m.GetNamespace() + "/" + m.GetName(), fresh
}
