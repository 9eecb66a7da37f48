package server_test

import (
	"compress/gzip"
	"io"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
)

// Clients on this machine get large objects uncompressed, unless the option says otherwise or
// a proxy forwards the request of another client. The objects are the same in both cases.
func TestLoopbackClientsGetLargeResponsesUncompressed(t *testing.T) {
	compares(t, deviations.Compression)
	for name, compress := range map[string]bool{"by default": false, "with CompressLoopback": true} {
		t.Run(name, func(t *testing.T) { compressionOfLargeAnswers(t, compress) })
	}
}

func compressionOfLargeAnswers(t *testing.T, compress bool) {
	c := start(t, func(config *server.Config) { config.CompressLoopback = compress })
	ns := c.namespace(t)
	text := strings.Repeat("as large as upstream's threshold ", 5000)
	create(t, c.CoreV1().ConfigMaps(ns), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Data: map[string]string{"text": text}})
	secure := httpClient(t, c.admin)
	for _, listener := range []struct {
		client *http.Client
		url    string
	}{{secure, c.URL}, {plainClient(t), c.InsecureURL}} {
		url := listener.url + "/api/v1/namespaces/" + ns + "/configmaps/large" // the revision of a list may change
		_, plain := get(t, listener.client, url)
		for _, relay := range []string{"", "192.0.2.8"} {
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			r.Header.Set("Accept-Encoding", "gzip") // if the test sets it, the client does not decompress the response
			if relay != "" {
				r.Header.Set("X-Forwarded-For", relay)
			}
			answer, err := listener.client.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			defer answer.Body.Close()
			want := ""
			var body io.Reader = answer.Body
			if compress || relay != "" {
				want = "gzip"
				if body, err = gzip.NewReader(answer.Body); err != nil {
					t.Fatal(err)
				}
			}
			if got := answer.Header.Get("Content-Encoding"); got != want {
				t.Errorf("CompressLoopback %v, relay %q, %s: Content-Encoding: got %q, want %q", compress, relay, url, got, want)
			}
			if text, err := io.ReadAll(body); err != nil || string(text) != plain {
				t.Errorf("CompressLoopback %v, relay %q, %s: got %d bytes, %v, want the same %d as ever", compress, relay, url, len(text), err, len(plain))
			}
		}
	}
}
