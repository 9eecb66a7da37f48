package server_test

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"net/http"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	registrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregator "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/internal/eventually"
)

// extension is an API server of one group, fleet.test/v1, with one resource, ships. Every ship
// is named after the user of the request.
func extension(t *testing.T) http.Handler {
	answer := func(w http.ResponseWriter, object any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(object)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/apis/fleet.test/v1", func(w http.ResponseWriter, r *http.Request) {
		answer(w, metav1.APIResourceList{
			TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: "fleet.test/v1",
			APIResources: []metav1.APIResource{{Name: "ships", SingularName: "ship", Kind: "Ship", Verbs: metav1.Verbs{"get"}}},
		})
	})
	mux.HandleFunc("/apis/fleet.test/v1/ships/mine", func(w http.ResponseWriter, r *http.Request) {
		if cn := r.TLS.PeerCertificates[0].Subject.CommonName; cn != "front-proxy-client" {
			t.Errorf("the proxy's certificate: got %s, want front-proxy-client", cn)
		}
		answer(w, map[string]any{
			"kind": "Ship", "apiVersion": "fleet.test/v1",
			"metadata": map[string]any{"name": r.Header.Get("X-Remote-User")},
			"groups":   r.Header.Values("X-Remote-Group"),
			"token":    r.Header.Get("Authorization"),
		})
	})
	return mux
}

// aggregate serves fleet.test/v1 with handler until the test ends, as an APIService of the
// cluster whose Service is in ns. It returns when the group is available.
func (c *cluster) aggregate(t *testing.T, ns string, handler http.Handler) {
	t.Helper()
	c.aggregateGroup(t, ns, "fleet.test", (*cluster).sliceTo, handler)
}

// aggregateGroup does that for any group, with the Service that lead makes.
func (c *cluster) aggregateGroup(t *testing.T, ns, group string, lead leader, handler http.Handler) {
	t.Helper()
	ctx := t.Context()
	// Some time after a start, the cluster publishes what an extension API server has to
	// trust.
	var published *corev1.ConfigMap
	eventually.Nil(t, "the published CAs", func() (err error) {
		published, err = c.CoreV1().ConfigMaps("kube-system").Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
		return err
	})
	frontProxy := x509.NewCertPool()
	if !frontProxy.AppendCertsFromPEM([]byte(published.Data["requestheader-client-ca-file"])) {
		t.Fatalf("no front-proxy CA in %v", published.Data)
	}
	port, _, ca := lead(c, t, ns, "extension", frontProxy, handler)
	services, err := aggregator.NewForConfig(c.admin)
	fatal(t, err)
	name := "v1." + group
	create(t, services.ApiregistrationV1().APIServices(), &registrationv1.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: registrationv1.APIServiceSpec{
			Group: group, Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10, CABundle: ca,
			Service: &registrationv1.ServiceReference{Namespace: ns, Name: "extension", Port: ptr.To(port)},
		},
	})
	// An unreachable group would break discovery for every other client.
	t.Cleanup(func() {
		_ = services.ApiregistrationV1().APIServices().Delete(context.Background(), name, metav1.DeleteOptions{})
	})
	eventually.Nil(t, name+" is available", func() error {
		s, err := services.ApiregistrationV1().APIServices().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range s.Status.Conditions {
			if condition.Type == registrationv1.Available {
				if condition.Status == registrationv1.ConditionTrue {
					return nil
				}
				return fmt.Errorf("%s: %s", condition.Reason, condition.Message)
			}
		}
		return fmt.Errorf("no condition in %v", s.Status)
	})
}
