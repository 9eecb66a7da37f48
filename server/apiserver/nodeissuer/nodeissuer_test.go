package nodeissuer

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/endpoints/request"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// A node's Lease says who issued the certificate with which the node renews it, whatever it said before; another Lease does not.
func TestLeasesNameTheIssuer(t *testing.T) {
	const annotation = "test/issuer"
	certificate := &tls.ConnectionState{PeerCertificates: []*x509.Certificate{{Issuer: pkix.Name{CommonName: "new"}}}}
	refused := errors.New("refused")
	for _, c := range []struct {
		namespace string
		tls       *tls.ConnectionState
		want      string
	}{{"kube-node-lease", certificate, "new"}, {"kube-node-lease", &tls.ConnectionState{}, ""}, {"kube-node-lease", nil, ""}, {"kube-system", certificate, "old"}} {
		lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{annotation: "old", "other": "stays"}}}
		config := &genericapiserver.Config{BuildHandlerChainFunc: func(api http.Handler, _ *genericapiserver.Config) http.Handler { return api }}
		Note(config)
		chain := config.BuildHandlerChainFunc(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			attributes := admission.NewAttributesRecord(lease, nil, coordinationv1.SchemeGroupVersion.WithKind("Lease"), c.namespace, "n",
				coordinationv1.SchemeGroupVersion.WithResource("leases"), "", admission.Update, nil, false, nil)
			if err := (issuerAdmission{refusing{refused}, annotation}).Admit(r.Context(), attributes, nil); !errors.Is(err, refused) {
				t.Errorf("got %v, want what the next plugin says", err)
			}
		}), config)
		r := httptest.NewRequestWithContext(request.WithRequestInfo(t.Context(), &request.RequestInfo{IsResourceRequest: true, Resource: "leases", Namespace: c.namespace}), http.MethodPut, "/", nil)
		r.TLS = c.tls
		chain.ServeHTTP(httptest.NewRecorder(), r)
		if got := lease.Annotations; got[annotation] != c.want || got["other"] != "stays" {
			t.Errorf("in %s: got %v, want the issuer %s", c.namespace, got, c.want)
		}
	}
}

// refusing is a plugin that admits nothing.
type refusing struct{ err error }

func (refusing) Handles(admission.Operation) bool { return true }

func (r refusing) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	return r.err
}
