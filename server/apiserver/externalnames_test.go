package apiserver

import (
	"fmt"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	listersv1 "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	aggregatorserver "k8s.io/kube-aggregator/pkg/apiserver"
	"k8s.io/utils/ptr"
)

type fixedSlices []*discoveryv1.EndpointSlice

func (s fixedSlices) GetEndpointSlices(namespace, name string) ([]*discoveryv1.EndpointSlice, error) {
	var of []*discoveryv1.EndpointSlice
	for _, slice := range s {
		if slice.Namespace == namespace && slice.Labels[discoveryv1.LabelServiceName] == name {
			of = append(of, slice)
		}
	}
	return of, nil
}

// For every kind of Service, the resolver does what one of upstream's two does: for ExternalName
// that of a kube-apiserver without --enable-aggregator-routing, for all others that of one with it.
func TestServicesResolveAsUpstream(t *testing.T) {
	store := cache.NewIndexer(cache.MetaNamespaceKeyFunc, cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc})
	port := []corev1.ServicePort{{Name: "https", Port: 443}}
	for name, spec := range map[string]corev1.ServiceSpec{
		"cluster-ip":    {Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.9", Ports: port},
		"node-port":     {Type: corev1.ServiceTypeNodePort, ClusterIP: "10.96.0.10", Ports: port},
		"balancer":      {Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.11", Ports: port},
		"headless":      {Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone, Ports: port},
		"no-endpoints":  {Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.12", Ports: port},
		"external":      {Type: corev1.ServiceTypeExternalName, ExternalName: "host.example.org"},
		"external-port": {Type: corev1.ServiceTypeExternalName, ExternalName: "localhost", Ports: port},
		"strange":       {Type: "Strange", Ports: port},
	} {
		if err := store.Add(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name}, Spec: spec}); err != nil {
			t.Fatal(err)
		}
	}
	var slices fixedSlices
	for _, name := range []string{"cluster-ip", "node-port", "balancer", "headless", "external"} {
		slices = append(slices, &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "a", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.7"}}},
			Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To[int32](8443)}},
		})
	}
	services := listersv1.NewServiceLister(store)
	ours := followNames(services, slices)
	routed, plain := aggregatorserver.NewEndpointServiceResolver(services, slices), aggregatorserver.NewClusterIPServiceResolver(services)
	followed := 0
	for _, name := range append(store.ListKeys(), "a/missing") {
		name = name[len("a/"):]
		for _, port := range []int32{443, 9443} {
			upstreams := routed
			if name == "external" || name == "external-port" {
				upstreams = plain
			}
			want, wantErr := upstreams.ResolveEndpoint("a", name, port)
			got, err := ours.ResolveEndpoint("a", name, port)
			if fmt.Sprint(got, err) != fmt.Sprint(want, wantErr) {
				t.Errorf("%s:%d: got %v and %v, want upstream's %v and %v", name, port, got, err, want, wantErr)
			}
			if upstreams == plain {
				if want := (url.URL{Scheme: "https", Host: map[string]string{"external": "host.example.org", "external-port": "localhost"}[name] + fmt.Sprint(":", port)}); err != nil || *got != want {
					t.Errorf("%s:%d: got %v and %v, want %v", name, port, got, err, &want)
				}
				followed++
			}
		}
	}
	if followed != 4 {
		t.Errorf("%d names were followed, want 4", followed)
	}
}
