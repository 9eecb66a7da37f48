package addons

import (
	"cmp"
	_ "embed"
	"fmt"
	"net"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	netutils "k8s.io/utils/net"
	"k8s.io/utils/ptr"
)

//go:embed Corefile
var corefile string

// CoreDNSVersion is the version that kubeadm of this Kubernetes deploys; a test compares them.
const CoreDNSVersion = "v1.14.6"

// DefaultReplicas is the number of CoreDNS' Pods, as with kubeadm.
const DefaultReplicas = 2

// MostReplicas is a number that no cluster needs.
const MostReplicas = 1000

// dnsIndex is the address of the DNS in the range of Services, by convention. Kubernetes assigns no
// address so low in the range by itself.
const dnsIndex = 10

func coreDNS(s Settings) ([]*unstructured.Unstructured, error) {
	objects, err := parse(coreDNSManifest)
	if err != nil {
		return nil, err
	}
	address, err := DNSAddress(s.ServiceRange)
	if err != nil {
		return nil, err
	}
	set := func(kind string, value any, path ...string) {
		if err == nil {
			err = unstructured.SetNestedField(find(objects, kind).Object, value, path...)
		}
	}
	set("ConfigMap", strings.ReplaceAll(corefile, "CLUSTER_DOMAIN", s.ClusterDomain), "data", "Corefile")
	set("Service", address, "spec", "clusterIP")
	set("Deployment", int64(ptr.Deref(s.Replicas, DefaultReplicas)), "spec", "replicas")
	if err != nil {
		return nil, err
	}
	// Upstream's registry has a directory for CoreDNS, others do not: kubeadm's rule.
	repository := s.ImageRepository
	if repository == "" || repository == DefaultImageRepository {
		repository = DefaultImageRepository + "/coredns"
	}
	return objects, setImage(find(objects, "Deployment"), cmp.Or(s.Image, fmt.Sprintf("%s/coredns:%s", repository, CoreDNSVersion)))
}

// DNSAddress is the address of the Service kube-dns: the tenth of the primary range of Services.
func DNSAddress(serviceRange string) (string, error) {
	_, services, err := net.ParseCIDR(serviceRange)
	if err != nil {
		return "", err
	}
	address, err := netutils.GetIndexedIP(services, dnsIndex)
	if err != nil {
		return "", fmt.Errorf("the Service range %s has no tenth address for the DNS: %w", serviceRange, err)
	}
	return address.String(), nil
}
