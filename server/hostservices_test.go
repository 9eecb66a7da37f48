package server_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server/deviations"
)

// interfaceAddress returns an address of this machine that endpoints may have. The API server
// refuses loopback addresses.
func interfaceAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	fatal(t, err)
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.IsGlobalUnicast() && ip.IP.To4() != nil {
			return ip.IP.String()
		}
	}
	t.Skip("this machine has no IPv4 address but loopback's, which endpoints must not have")
	return ""
}

// leader serves handler over HTTPS on this machine, and makes a Service that leads there. The
// certificate is for the Service's name only. It returns the port by which to refer to the Service.
type leader = func(c *cluster, t *testing.T, ns, service string, clients *x509.CertPool, handler http.Handler) (port int32, at string, ca []byte)

// sliceTo makes a Service without a selector, and an EndpointSlice with an address of this machine.
func (c *cluster) sliceTo(t *testing.T, ns, service string, clients *x509.CertPool, handler http.Handler) (port int32, at string, ca []byte) {
	t.Helper()
	address := interfaceAddress(t)
	at, ca = serveTLS(t, address, []string{service + "." + ns + ".svc"}, clients, handler)
	create(t, c.CoreV1().Services(ns), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service},
		Spec:       corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "https", Port: 443}}},
	})
	create(t, c.DiscoveryV1().EndpointSlices(ns), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: service, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{address}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}}},
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To("https"), Port: ptr.To(portOf(t, at))}},
	})
	return 443, at, ca
}

// nameOf makes a Service of type ExternalName, whose name is localhost.
func (c *cluster) nameOf(t *testing.T, ns, service string, clients *x509.CertPool, handler http.Handler) (port int32, at string, ca []byte) {
	t.Helper()
	at, ca = serveTLS(t, "127.0.0.1", []string{service + "." + ns + ".svc"}, clients, handler)
	create(t, c.CoreV1().Services(ns), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "localhost"},
	})
	return portOf(t, at), at, ca
}

func portOf(t *testing.T, at string) int32 {
	t.Helper()
	u, err := url.Parse(at)
	fatal(t, err)
	port, err := strconv.ParseInt(u.Port(), 10, 32)
	fatal(t, err)
	return int32(port)
}

// Webhooks, conversions and APIServices reach a process of this machine through a Service of each
// kind that a developer can make for it. The process has a certificate for the Service's name.
func TestServicesOnTheHost(t *testing.T) {
	c := shared(t)
	for kind, lead := range map[string]leader{"slice": (*cluster).sliceTo, "name": (*cluster).nameOf} {
		t.Run(kind, func(t *testing.T) {
			if kind == "name" {
				compares(t, deviations.ExternalNames)
			}
			t.Run("webhook", func(t *testing.T) { c.webhookOnTheHost(t, lead) })
			t.Run("conversion", func(t *testing.T) { c.conversionOnTheHost(t, kind, lead) })
			t.Run("APIService", func(t *testing.T) { c.apiServiceOnTheHost(t, kind, lead) })
		})
	}
}

func (c *cluster) webhookOnTheHost(t *testing.T, lead leader) {
	ns := c.namespace(t)
	port, _, ca := lead(c, t, ns, "webhook", nil, review(t, func(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		if r.Name == "forbidden" {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: "the process says no"}}
		}
		return &admissionv1.AdmissionResponse{Allowed: true}
	}))
	c.validate(t, ns, ns, registrationv1.WebhookClientConfig{CABundle: ca, Service: &registrationv1.ServiceReference{Namespace: ns, Name: "webhook", Port: &port}})
	refusedSoon(t, c, ns, "the process says no")
}

func (c *cluster) conversionOnTheHost(t *testing.T, kind string, lead leader) {
	ns := c.namespace(t)
	port, _, ca := lead(c, t, ns, "converter", nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var ask apiextensionsv1.ConversionReview
		if err := json.NewDecoder(r.Body).Decode(&ask); err != nil || ask.Request == nil {
			t.Errorf("the converter got no review: %v", err)
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		answer := apiextensionsv1.ConversionReview{TypeMeta: ask.TypeMeta, Response: &apiextensionsv1.ConversionResponse{
			UID: ask.Request.UID, Result: metav1.Status{Status: metav1.StatusSuccess}}}
		for _, object := range ask.Request.Objects {
			u := &unstructured.Unstructured{}
			if err := u.UnmarshalJSON(object.Raw); err != nil {
				t.Errorf("the converter got %s: %v", object.Raw, err)
			}
			u.SetAPIVersion(ask.Request.DesiredAPIVersion)
			_ = unstructured.SetNestedField(u.Object, int64(7), "spec", "sails")
			answer.Response.ConvertedObjects = append(answer.Response.ConvertedObjects, runtime.RawExtension{Object: u})
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}))
	definition := boatDefinition()
	definition.Spec.Group = kind + ".host.karve.test"
	definition.Name = "boats." + definition.Spec.Group
	definition.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
		ClientConfig: &apiextensionsv1.WebhookClientConfig{CABundle: ca,
			Service: &apiextensionsv1.ServiceReference{Namespace: ns, Name: "converter", Port: &port}},
		ConversionReviewVersions: []string{"v1"},
	}}
	definitions := c.definitions(t)
	create(t, definitions, definition)
	t.Cleanup(func() { _ = definitions.Delete(context.Background(), definition.Name, metav1.DeleteOptions{}) })
	v2 := c.dynamic.Resource(schema.GroupVersionResource{Group: definition.Spec.Group, Version: "v2", Resource: "boats"}).Namespace(ns)
	made := boat("longship", map[string]any{"sails": int64(1)}, nil)
	made.SetAPIVersion(definition.Spec.Group + "/v1")
	eventually.Nil(t, "a boat of v1", func() error {
		_, err := c.dynamic.Resource(schema.GroupVersionResource{Group: definition.Spec.Group, Version: "v1", Resource: "boats"}).Namespace(ns).Create(t.Context(), made, metav1.CreateOptions{})
		return err
	})
	eventually.Nil(t, "the boat as v2", func() error {
		got, err := v2.Get(t.Context(), "longship", metav1.GetOptions{})
		if err != nil {
			return err
		}
		if sails, _, _ := unstructured.NestedInt64(got.Object, "spec", "sails"); sails != 7 {
			return fmt.Errorf("spec.sails: got %d, want the converter's 7", sails)
		}
		return nil
	})
	if err := v2.Delete(t.Context(), "longship", metav1.DeleteOptions{}); err != nil { // while there is a converter
		t.Error(err)
	}
}

func (c *cluster) apiServiceOnTheHost(t *testing.T, kind string, lead leader) {
	ns, group := c.namespace(t), kind+".host.test"
	mux := http.NewServeMux()
	mux.HandleFunc("/apis/"+group+"/v1", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(metav1.APIResourceList{TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: group + "/v1"})
	})
	mux.HandleFunc("/apis/"+group+"/v1/ships/mine", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "a ship of %s", r.Header.Get("X-Remote-User"))
	})
	c.aggregateGroup(t, ns, group, lead, mux)
	eventually.Nil(t, "the group is served", func() error {
		status, body := get(t, httpClient(t, c.admin), c.URL+"/apis/"+group+"/v1/ships/mine")
		return contains(status, body, "a ship of kubernetes-admin")
	})
}
