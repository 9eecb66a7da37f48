// Package addons has what a cluster with nodes needs beside its control plane: kube-proxy and
// CoreDNS, as kubeadm deploys them.
//
// [File] returns a manifest with kubeadm's own objects for the [Settings] of a cluster, which [Read]
// takes from the cluster itself. The server applies the file with its other manifests.
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

	"github.com/karve-k8s/karve/control"
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

const (
	// namespace is where all namespaced objects are.
	namespace = "kube-system"
	// configurationSum is an annotation of kube-proxy's Pods.
	configurationSum = "addons.karve/configuration"
)

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

// objectsOf returns the objects of an addon, in the order in which they are created. The last one is
// the DaemonSet or Deployment.
func objectsOf(name string, s Settings) ([]*unstructured.Unstructured, error) {
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
	return objects, unstructured.SetNestedField(workload, sum, append(template, "metadata", "annotations", configurationSum)...)
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

// sumLine begins the line of a file that has the checksum of what follows.
const sumLine = "# sha256 of what follows: "

// File returns the manifest of an addon. Without overwrite, the server leaves fields as they are that somebody else has
// set in the cluster, and reports them.
func File(name string, s Settings, overwrite bool) ([]byte, error) {
	objects, err := objectsOf(name, s)
	if err != nil {
		return nil, err
	}
	var documents [][]byte
	for _, o := range objects {
		if !overwrite {
			if err := unstructured.SetNestedField(o.Object, "false", "metadata", "annotations", control.OverwriteAnnotation); err != nil {
				return nil, err
			}
		}
		document, err := yamlencoding.Marshal(o.Object)
		if err != nil {
			return nil, err
		}
		documents = append(documents, document)
	}
	body := bytes.Join(documents, []byte("---\n"))
	head := fmt.Sprintf("# %s of Kubernetes %s, made by karve addons apply %s, which does not replace a file that somebody has edited.\n"+
		"# The server applies this file. Changes belong here, not into the cluster.\n%s%x\n", name, s.Version, name, sumLine, sha256.Sum256(body))
	return append([]byte(head), body...), nil
}

// Edited reports whether a file is not as [File] made it.
func Edited(file []byte) bool {
	_, rest, _ := bytes.Cut(file, []byte(sumLine))
	sum, body, found := bytes.Cut(rest, []byte("\n"))
	return !found || string(sum) != fmt.Sprintf("%x", sha256.Sum256(body))
}
