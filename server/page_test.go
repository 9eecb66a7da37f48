package server_test

import (
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/server/page"
)

// The page at /karve/ is for administrators, as everything is that tells about the whole cluster.
func TestPage(t *testing.T) {
	c := shared(t)
	create(t, c.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "page"}})
	create(t, c.CoreV1().Events("page"), &corev1.Event{
		ObjectMeta: metav1.ObjectMeta{Name: "warning"}, Type: corev1.EventTypeWarning, Reason: "TestOfThePage", Message: "<b>bold</b>",
		InvolvedObject: corev1.ObjectReference{Kind: "Namespace", Name: "page", Namespace: "page"},
	})
	get := func(config *rest.Config, method string) (int, string, http.Header) {
		t.Helper()
		client, err := rest.HTTPClientFor(config)
		fatal(t, err)
		r, err := http.NewRequestWithContext(t.Context(), method, config.Host+page.Path, nil)
		fatal(t, err)
		answer, err := client.Do(r)
		fatal(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		fatal(t, err)
		return answer.StatusCode, string(text), answer.Header
	}
	user := rest.CopyConfig(c.admin)
	user.Impersonate = rest.ImpersonationConfig{UserName: "jane", Groups: []string{"developers"}}
	if code, text, _ := get(user, http.MethodGet); code != http.StatusForbidden || strings.Contains(text, "Ready") {
		t.Errorf("no administrator: got %d: %s", code, text)
	}
	if code, _, _ := get(rest.AnonymousClientConfig(c.admin), http.MethodGet); code != http.StatusForbidden {
		t.Errorf("nobody: got %d", code)
	}
	code, text, _ := get(c.admin, http.MethodGet)
	if code != http.StatusOK {
		t.Fatalf("an administrator: got %d: %s", code, text)
	}
	for _, want := range []string{"<title>Ready · Karve on ", c.URL, c.dir, "TestOfThePage", "&lt;b&gt;bold", "server-ca", "datastore", "scheduler", "No nodes yet"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not have %q:\n%s", want, text)
		}
	}
	if code, text, header := get(c.admin, http.MethodHead); code != http.StatusOK || text != "" || header.Get("Content-Security-Policy") == "" || header.Get("Cache-Control") != "no-store" {
		t.Errorf("HEAD: got %d, %q and %v", code, text, header)
	}
}
