package server_test

import (
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
	user := rest.CopyConfig(c.admin)
	user.Impersonate = rest.ImpersonationConfig{UserName: "jane", Groups: []string{"developers"}}
	if code, text := get(t, httpClient(t, user), c.URL+page.Path); code != http.StatusForbidden || strings.Contains(text, "Ready") {
		t.Errorf("no administrator: got %d: %s", code, text)
	}
	if code, _ := get(t, httpClient(t, rest.AnonymousClientConfig(c.admin)), c.URL+page.Path); code != http.StatusForbidden {
		t.Errorf("nobody: got %d", code)
	}
	code, text := get(t, httpClient(t, c.admin), c.URL+page.Path)
	if code != http.StatusOK {
		t.Fatalf("an administrator: got %d: %s", code, text)
	}
	for _, want := range []string{"<title>Ready · Karve on ", c.URL, c.dir, "TestOfThePage", "&lt;b&gt;bold", "server-ca", "datastore", "scheduler", "Nodes and Pods",
		"Requests per minute in the last hour", "Longest commit of each minute in the last hour", "Memory in the last hour"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not have %q:\n%s", want, text)
		}
	}
	if code, text := get(t, httpClient(t, c.admin), c.URL+strings.TrimSuffix(page.Path, "/")); code != http.StatusOK || !strings.Contains(text, "<title>Ready") {
		t.Errorf("without the slash: got %d: %s", code, text)
	}
	answer, err := httpClient(t, c.admin).Head(c.URL + page.Path)
	fatal(t, err)
	answer.Body.Close()
	if h := answer.Header; answer.StatusCode != http.StatusOK || h.Get("Content-Security-Policy") == "" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("HEAD: got %s and %v", answer.Status, h)
	}
}
