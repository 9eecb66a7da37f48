package server_test

import (
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
)

// Clients on this machine get large objects uncompressed, unless the option says otherwise.
func TestLoopbackClientsGetLargeResponsesUncompressed(t *testing.T) {
	compares(t, deviations.Compression)
	for name, want := range map[string]string{"by default": "", "with CompressLoopback": "gzip"} {
		t.Run(name, func(t *testing.T) {
			c := start(t, func(config *server.Config) { config.CompressLoopback = want != "" })
			ns := c.namespace(t)
			text := strings.Repeat("as large as upstream's threshold ", 5000)
			create(t, c.CoreV1().ConfigMaps(ns), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "large"}, Data: map[string]string{"text": text}})
			for url, client := range map[string]*http.Client{c.URL: httpClient(t, c.admin), c.InsecureURL: plainClient(t)} {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url+"/api/v1/namespaces/"+ns+"/configmaps/large", nil)
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Accept-Encoding", "gzip") // if the test sets it, the client does not decompress the response
				answer, err := client.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				answer.Body.Close()
				if got := answer.Header.Get("Content-Encoding"); answer.StatusCode != http.StatusOK || got != want {
					t.Errorf("%s: %s with Content-Encoding %q, want %q", url, answer.Status, got, want)
				}
			}
		})
	}
}
