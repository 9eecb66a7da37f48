package server_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server/insecure"
)

// A client that continues to create objects while their namespace is deleted leaves nothing
// behind.
func TestNothingOutlivesItsNamespace(t *testing.T) {
	c := shared(t)
	ctx := t.Context()
	for range 5 {
		ns := c.namespace(t)
		var writers sync.WaitGroup
		for w := range 8 {
			writers.Go(func() {
				for i := 0; ; i++ {
					object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("w%d-%d", w, i)}}
					if _, err := c.CoreV1().ConfigMaps(ns).Create(ctx, object, metav1.CreateOptions{}); err != nil {
						return
					}
				}
			})
		}
		fatal(t, c.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}))
		writers.Wait()
		gone(t, c.CoreV1().Namespaces(), ns)
		left, err := c.CoreV1().ConfigMaps(ns).List(ctx, metav1.ListOptions{})
		fatal(t, err)
		if len(left.Items) > 0 {
			t.Errorf("%d objects are left in a namespace that is gone", len(left.Items))
		}
	}
}

// A webhook may delay a request that was admitted in time.
func TestNothingOutlivesItsNamespaceDespiteASlowWebhook(t *testing.T) {
	c := shared(t)
	ns := c.namespace(t)
	late := c.holdCreate(t, ns)
	fatal(t, c.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}))
	late.end(t)
	c.wantNothingLate(t, ns)
}

// A request that was admitted before the deletion may take time. The namespace exists until
// the request has ended, and nothing is left of it afterwards.
func TestNamespaceWaitsForRequests(t *testing.T) {
	c := start(t, nil) // another test's webhook would cause upstream's grace period
	ctx := t.Context()
	ns := c.namespace(t)
	late := c.holdCreate(t, ns)
	// Without a webhook, the deletion waits only for the request, without a grace period.
	fatal(t, c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Delete(ctx, ns, metav1.DeleteOptions{}))
	fatal(t, c.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}))
	for range 20 {
		if _, err := c.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{}); err != nil {
			t.Fatalf("the namespace while a request is in flight: %v", err)
		}
		time.Sleep(50 * time.Millisecond) // not a synchronisation: time in which the defect could show
	}
	late.end(t)
	c.wantNothingLate(t, ns)
}

// heldCreate is a create request that was admitted to a namespace and that a webhook delays.
type heldCreate struct {
	release chan struct{}
	created chan error
}

func (c *cluster) holdCreate(t *testing.T, ns string) *heldCreate {
	t.Helper()
	ctx := t.Context()
	held := &heldCreate{make(chan struct{}), make(chan error, 1)}
	asked := make(chan struct{})
	url, ca := serveTLS(t, "127.0.0.1", nil, nil, review(t, func(*admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
		close(asked)
		select {
		case <-held.release:
		case <-ctx.Done():
		}
		return &admissionv1.AdmissionResponse{Allowed: true}
	}))
	c.validate(t, ns, ns, registrationv1.WebhookClientConfig{URL: &url, CABundle: ca}, registrationv1.MatchCondition{Name: "ours", Expression: `request.name == "late"`})
	maps := c.CoreV1().ConfigMaps(ns)
	late := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "late"}}
	eventually.Nil(t, "the webhook is asked", func() error {
		// Admission learns its configuration from a watch.
		go func() {
			_, err := maps.Create(ctx, late, metav1.CreateOptions{})
			held.created <- err
		}()
		select {
		case <-asked:
			return nil
		case err := <-held.created:
			if err == nil {
				err = maps.Delete(ctx, late.Name, metav1.DeleteOptions{})
			}
			return fmt.Errorf("created without the webhook: %w", err)
		}
	})
	return held
}

func (h *heldCreate) end(t *testing.T) {
	t.Helper()
	close(h.release)
	if err := <-h.created; err != nil {
		t.Fatalf("a request that was in time: %v", err)
	}
}

// wantNothingLate waits until a namespace has gone, and fails if an object that was created
// late is left.
func (c *cluster) wantNothingLate(t *testing.T, ns string) {
	t.Helper()
	gone(t, c.CoreV1().Namespaces(), ns)
	if _, err := c.CoreV1().ConfigMaps(ns).Get(t.Context(), "late", metav1.GetOptions{}); wantNotFound(err) != nil {
		t.Errorf("what was created late is left in a namespace that is gone: %v", err)
	}
}

// A request whose body has not arrived is not admitted yet, so it does not delay the deletion.
// If the body arrives later, the request creates nothing.
func TestStalledBodyHoldsNoNamespace(t *testing.T) {
	c := shared(t)
	ctx := t.Context()
	ns := c.namespace(t)
	body, writing := io.Pipe()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.InsecureURL+"/api/v1/namespaces/"+ns+"/configmaps", body)
	fatal(t, err)
	const whole = 100000
	request.ContentLength = whole // otherwise HTTP/1.1 sends chunks
	request.Header.Set("Content-Type", "application/json")
	// The server sends "100 Continue" when the handler begins to read the body.
	request.Header.Set("Expect", "100-continue")
	begun := make(chan struct{})
	request = request.WithContext(httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{Got100Continue: func() { close(begun) }}))
	transport := &http.Transport{ExpectContinueTimeout: patience, DialContext: insecure.Dial}
	defer transport.CloseIdleConnections()
	answered := make(chan error, 1)
	go func() {
		answer, err := transport.RoundTrip(request)
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusCreated {
				err = errors.New("an object was made in a namespace that is gone")
			}
		}
		answered <- err
	}()
	select {
	case <-begun:
	case <-time.After(patience):
		t.Fatal("the request has not begun")
	}
	first, rest := `{`, `"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"late"}}`
	if _, err := io.WriteString(writing, first); err != nil {
		t.Fatal(err)
	}
	fatal(t, c.CoreV1().Namespaces().Delete(ctx, ns, metav1.DeleteOptions{}))
	gone(t, c.CoreV1().Namespaces(), ns)
	select {
	case err := <-answered:
		t.Fatalf("the request has ended before its body: %v", err)
	default:
	}
	if _, err := io.WriteString(writing, rest+strings.Repeat(" ", whole-len(first)-len(rest))); err != nil {
		t.Fatal(err)
	}
	writing.Close()
	if err := <-answered; err != nil {
		t.Error(err)
	}
}
