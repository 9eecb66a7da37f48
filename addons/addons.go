// Package addons has what a cluster with nodes needs beside its control plane: kube-proxy and
// CoreDNS, as kubeadm deploys them.
//
// [Objects] returns the objects of an addon for the [Settings] of a cluster, which [Read] takes
// from the cluster itself. apply.go applies and deletes them, kubelet.go tells the kubelets the
// address of the DNS. DESIGN.md says why kubeadm's own phases are not linked.
package addons

import (
	"bytes"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/yaml"
	yamlencoding "sigs.k8s.io/yaml"
)

// The names of the addons.
const (
	KubeProxy = "kube-proxy"
	CoreDNS   = "coredns"
)

// Names are the addons, in the order in which [List] has them.
var Names = []string{KubeProxy, CoreDNS}

//go:embed kube-proxy.yaml
var kubeProxyManifest []byte

//go:embed coredns.yaml
var coreDNSManifest []byte

// manifests are the objects of the addons. The last of each is the workload.
var manifests = map[string][]byte{KubeProxy: kubeProxyManifest, CoreDNS: coreDNSManifest}

// DefaultImageRepository is where upstream publishes the images.
const DefaultImageRepository = "registry.k8s.io"

// namespace is where all namespaced objects are.
const namespace = "kube-system"

// Settings are what the objects of an addon depend on.
type Settings struct {
	// Server is the URL at which nodes reach the API server.
	Server string
	// ServiceRange is the primary range of Service addresses.
	ServiceRange string
	// ClusterCIDR is the range of Pod addresses: one CIDR, two separated by a comma, or none.
	ClusterCIDR string
	// ClusterDomain is the DNS domain of the cluster.
	ClusterDomain string
	// Version is the version of Kubernetes, such as v1.37.2.
	Version string

	// ImageRepository is the prefix of image names; empty means DefaultImageRepository.
	ImageRepository string
	// Image is the whole name of the image, and takes precedence over ImageRepository.
	Image string
	// Replicas is the number of CoreDNS' Pods; nil means DefaultReplicas.
	Replicas *int32
	// ProxyMode is kube-proxy's mode; empty means iptables, as with kubeadm.
	ProxyMode string
}

// Check returns the problems of what a user has decided. The errors name the options.
func (s Settings) Check() error {
	var problems []error
	if s.ProxyMode != "" && !slices.Contains(ProxyModes, s.ProxyMode) {
		problems = append(problems, fmt.Errorf("--proxy-mode %q: want %s", s.ProxyMode, strings.Join(ProxyModes, ", ")))
	}
	if s.Server != "" {
		problems = append(problems, checkServer(s.Server))
	}
	if s.ClusterDomain != "" {
		if wrong := validation.IsDNS1123Subdomain(s.ClusterDomain); len(wrong) > 0 {
			problems = append(problems, fmt.Errorf("--cluster-domain %q: want a DNS domain such as cluster.local", s.ClusterDomain))
		}
	}
	if _, err := parseRanges(s.ClusterCIDR); err != nil {
		problems = append(problems, err)
	}
	for option, value := range map[string]string{"image": s.Image, "image-repository": s.ImageRepository} {
		if strings.ContainsFunc(value, func(r rune) bool { return r <= ' ' || r == 0x7f }) || strings.Contains(value, "://") {
			problems = append(problems, fmt.Errorf("--%s %q: want the name of an image without spaces and without https://, such as registry.example.org/coredns", option, value))
		}
	}
	return errors.Join(problems...)
}

// Objects returns the objects of an addon, in the order in which they are created.
func Objects(name string, s Settings) ([]*unstructured.Unstructured, error) {
	switch name {
	case KubeProxy:
		return kubeProxy(s)
	case CoreDNS:
		return coreDNS(s)
	}
	return nil, unknown(name)
}

func unknown(name string) error { return fmt.Errorf("there is no addon %q", name) }

// YAML returns objects as one stream of documents.
func YAML(objects []*unstructured.Unstructured) ([]byte, error) {
	var stream bytes.Buffer
	for i, o := range objects {
		document, err := yamlencoding.Marshal(o.Object)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			stream.WriteString("---\n")
		}
		stream.Write(document)
	}
	return stream.Bytes(), nil
}

// parse reads an embedded manifest.
func parse(manifest []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	for d := yaml.NewYAMLToJSONDecoder(bytes.NewReader(manifest)); ; {
		o := &unstructured.Unstructured{}
		if err := d.Decode(o); errors.Is(err, io.EOF) {
			return objects, nil
		} else if err != nil {
			return nil, err
		}
		objects = append(objects, o)
	}
}

// find returns the object of a kind, of which the manifest has one.
func find(objects []*unstructured.Unstructured, kind string) *unstructured.Unstructured {
	return objects[slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind })]
}

// setImage sets the image of a workload's only container.
func setImage(workload *unstructured.Unstructured, image string) error {
	containers, _, err := unstructured.NestedSlice(workload.Object, "spec", "template", "spec", "containers")
	if err != nil {
		return err
	}
	containers[0].(map[string]any)["image"] = image
	return unstructured.SetNestedSlice(workload.Object, containers, "spec", "template", "spec", "containers")
}
