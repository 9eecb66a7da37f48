package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/internal/eventually"
)

// serveTLS serves handler over HTTPS at address until the test ends, with a certificate for
// names. It returns the certificate's own authority in PEM. If clients is not nil, only
// clients with a certificate of that pool may connect.
func serveTLS(t *testing.T, address string, names []string, clients *x509.CertPool, handler http.Handler) (url string, ca []byte) {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(address, "0"))
	fatal(t, err)
	return serveTLSAt(t, l, names, clients, handler)
}

// serveTLSAt is serveTLS at a listener.
func serveTLSAt(t *testing.T, l net.Listener, names []string, clients *x509.CertPool, handler http.Handler) (url string, ca []byte) {
	t.Helper()
	key, _ := newKey(t)
	der := selfSigned(t, key, "test", append(names, l.Addr().(*net.TCPAddr).IP.String())...)
	s := httptest.NewUnstartedServer(handler)
	s.Listener.Close()
	s.Listener = l
	s.EnableHTTP2 = true
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	if clients != nil {
		s.TLS.ClientCAs, s.TLS.ClientAuth = clients, tls.RequireAndVerifyClientCert
	}
	s.StartTLS()
	t.Cleanup(s.Close)
	return s.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// review answers admission reviews.
func review(t *testing.T, decide func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var ask admissionv1.AdmissionReview
		if err := json.NewDecoder(r.Body).Decode(&ask); err != nil || ask.Request == nil {
			t.Errorf("webhook got no review: %v", err)
			http.Error(w, "no review", http.StatusBadRequest)
			return
		}
		answer := admissionv1.AdmissionReview{TypeMeta: ask.TypeMeta, Response: decide(ask.Request)}
		answer.Response.UID = ask.Request.UID
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	})
}

var configMaps = []registrationv1.RuleWithOperations{{
	Operations: []registrationv1.OperationType{registrationv1.Create},
	Rule:       registrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"}},
}}

func inNamespace(name string) *metav1.LabelSelector {
	return &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: name}}
}

// validate lets a webhook decide about new ConfigMaps of a namespace, until the test ends.
func (c *cluster) validate(t *testing.T, name, ns string, client registrationv1.WebhookClientConfig, conditions ...registrationv1.MatchCondition) {
	t.Helper()
	configurations := c.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	create(t, configurations, &registrationv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Webhooks: []registrationv1.ValidatingWebhook{{
			Name: name + ".karve.test", Rules: configMaps, NamespaceSelector: inNamespace(ns), MatchConditions: conditions, ClientConfig: client,
			SideEffects: ptr.To(registrationv1.SideEffectClassNone), AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: ptr.To[int32](30),
		}},
	})
	t.Cleanup(func() { _ = configurations.Delete(context.Background(), name, metav1.DeleteOptions{}) }) // the test may have
}

// refusedSoon waits until the ConfigMap "forbidden" is refused with words. Admission learns
// its configuration from a watch.
func refusedSoon(t *testing.T, c *cluster, ns, words string) {
	t.Helper()
	maps := c.CoreV1().ConfigMaps(ns)
	eventually.Nil(t, "the ConfigMap is refused", func() error {
		_, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "forbidden"}}, metav1.CreateOptions{})
		switch {
		case err == nil:
			_ = maps.Delete(t.Context(), "forbidden", metav1.DeleteOptions{})
			return errors.New("it was created")
		case strings.Contains(err.Error(), words):
			return nil
		}
		return err
	})
}

// mutatedSoon waits until new ConfigMaps get the data from=want.
func mutatedSoon(t *testing.T, c *cluster, ns, want string) {
	t.Helper()
	eventually.Nil(t, "the ConfigMap is mutated", func() error {
		made, err := c.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "mutated-"}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if got := made.Data["from"]; got != want {
			return fmt.Errorf("data from: got %q, want %q", got, want)
		}
		return nil
	})
}
