// Package addons has what a cluster with nodes needs beside its control plane: kube-proxy and
// CoreDNS, as kubeadm deploys them.
//
// [Objects] returns kubeadm's own objects for the [Settings] of a cluster, which [Read] takes from
// the cluster itself. apply.go applies, lists and deletes them, kubelet.go tells the kubelets the
// address of the DNS.
package addons

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	kubeproxyconfig "k8s.io/kube-proxy/config/v1alpha1"
	kubeadmapi "k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm"
	"k8s.io/kubernetes/cmd/kubeadm/app/apis/kubeadm/v1beta4"
	"k8s.io/kubernetes/cmd/kubeadm/app/componentconfigs"
	"k8s.io/kubernetes/cmd/kubeadm/app/constants"
	"k8s.io/kubernetes/cmd/kubeadm/app/images"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/addons/dns"
	"k8s.io/kubernetes/cmd/kubeadm/app/phases/addons/proxy"
	yamlencoding "sigs.k8s.io/yaml"
)

// The names of the addons, which are also those of their DaemonSet and Deployment.
const (
	KubeProxy = "kube-proxy"
	CoreDNS   = "coredns"
)

const (
	// DefaultImageRepository is where upstream publishes the images.
	DefaultImageRepository = v1beta4.DefaultImageRepository
	// DefaultReplicas is the number of CoreDNS' Pods, as with kubeadm.
	DefaultReplicas = 2
	// MostReplicas is a number that no cluster needs.
	MostReplicas = 1000
)

// namespace is where all namespaced objects are.
const namespace = "kube-system"

// ProxyModes are the modes of kube-proxy on Linux. The first is kubeadm's.
var ProxyModes = []string{"iptables", "nftables", "ipvs"}

// Settings are what the objects of an addon depend on.
type Settings struct {
	Server        string // URL at which nodes reach the API server
	ServiceRange  string // primary range of Service addresses
	ClusterCIDR   string // range of Pod addresses: one CIDR, two separated by a comma, or none
	ClusterDomain string // DNS domain of the cluster
	Version       string // of Kubernetes, such as v1.37.2

	ImageRepository string // prefix of image names; empty means DefaultImageRepository
	Image           string // whole name of the image, which takes precedence over ImageRepository
	Replicas        *int32 // number of CoreDNS' Pods; nil means DefaultReplicas
	ProxyMode       string // empty means the first of ProxyModes
}

// order of the kinds: what others need comes first.
var order = []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding", "ConfigMap", "Service", "Deployment", "DaemonSet"}

// Objects returns the objects of an addon, in the order in which they are created. The last one is
// the DaemonSet or Deployment.
func Objects(name string, s Settings) ([]*unstructured.Unstructured, error) {
	manifest, err := kubeadms(name, s)
	if err != nil {
		return nil, err
	}
	var objects []*unstructured.Unstructured
	for d := yaml.NewYAMLToJSONDecoder(manifest); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(&o.Object); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if o.Object != nil {
			o.SetResourceVersion("") // kubeadm updates Services without having read them
			objects = append(objects, o)
		}
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int {
		return slices.Index(order, a.GetKind()) - slices.Index(order, b.GetKind())
	})
	workload := objects[len(objects)-1].Object
	template := []string{"spec", "template"}
	if s.Image != "" {
		containers, _, err := unstructured.NestedSlice(workload, append(template, "spec", "containers")...)
		if err != nil {
			return nil, err
		}
		containers[0].(map[string]any)["image"] = s.Image
		if err := unstructured.SetNestedSlice(workload, containers, append(template, "spec", "containers")...); err != nil {
			return nil, err
		}
	}
	if name == CoreDNS {
		if s.Replicas != nil {
			err = unstructured.SetNestedField(workload, int64(*s.Replicas), "spec", "replicas")
		}
		return objects, err
	}
	// kube-proxy exits when its configuration changes, but does not notice a new kubeconfig. A new
	// checksum replaces the Pods.
	configMap := objects[slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "ConfigMap" })]
	sum := fmt.Sprintf("sha256:%x", sha256.Sum256(fmt.Append(nil, configMap.Object["data"])))
	return objects, unstructured.SetNestedField(workload, sum, append(template, "metadata", "annotations", prefix+"configuration")...)
}

// kubeadms returns what `kubeadm init phase addon --print-manifest` prints.
func kubeadms(name string, s Settings) (*bytes.Buffer, error) {
	manifest := &bytes.Buffer{}
	cluster := &kubeadmapi.ClusterConfiguration{
		KubernetesVersion: s.Version, ImageRepository: cmp.Or(s.ImageRepository, DefaultImageRepository),
		Networking: kubeadmapi.Networking{ServiceSubnet: s.ServiceRange, PodSubnet: s.ClusterCIDR, DNSDomain: s.ClusterDomain},
	}
	if name == CoreDNS {
		return manifest, dns.EnsureDNSAddon(cluster, nil, "", manifest, true)
	} else if name != KubeProxy {
		return nil, fmt.Errorf("there is no addon %q", name)
	}
	server, err := parseServer(s.Server)
	if err != nil {
		return nil, err
	}
	// The nodes' addresses are of the family of the server's address or, if that is a name, of the
	// primary range of Services.
	port, _ := strconv.ParseInt(server.Port(), 10, 32)
	endpoint := &kubeadmapi.APIEndpoint{AdvertiseAddress: server.Hostname(), BindPort: int32(port)}
	if !isAddress(server.Hostname()) {
		if endpoint.AdvertiseAddress, err = DNSAddress(s.ServiceRange); err != nil {
			return nil, err
		}
	}
	cluster.ControlPlaneEndpoint = server.Host
	kind := kubeproxyconfig.SchemeGroupVersion.WithKind("KubeProxyConfiguration")
	config := fmt.Appendf(nil, "apiVersion: %s\nkind: %s\nmode: %s\n", kind.GroupVersion(), kind.Kind, cmp.Or(s.ProxyMode, ProxyModes[0]))
	if err := componentconfigs.FetchFromDocumentMap(cluster, kubeadmapi.DocumentMap{kind: config}); err != nil {
		return nil, err
	}
	cluster.ComponentConfigs[componentconfigs.KubeProxyGroup].Default(cluster, endpoint, nil)
	return manifest, proxy.EnsureProxyAddon(cluster, endpoint, nil, "", manifest, true)
}

// Images returns the images of all addons, and the one of the sandbox of each Pod.
func Images(s Settings) []string {
	cluster := &kubeadmapi.ClusterConfiguration{KubernetesVersion: s.Version, ImageRepository: cmp.Or(s.ImageRepository, DefaultImageRepository)}
	return []string{images.GetKubernetesImage(constants.KubeProxy, cluster), images.GetDNSImage(cluster), PauseImage(cluster.ImageRepository)}
}

// PauseImage returns the image of the sandbox of each Pod.
func PauseImage(repository string) string {
	return images.GetPauseImage(&kubeadmapi.ClusterConfiguration{ImageRepository: repository})
}

// YAML returns objects as one stream of documents.
func YAML(objects []*unstructured.Unstructured) ([]byte, error) {
	var documents [][]byte
	for _, o := range objects {
		document, err := yamlencoding.Marshal(o.Object)
		if err != nil {
			return nil, err
		}
		documents = append(documents, document)
	}
	return bytes.Join(documents, []byte("---\n")), nil
}
