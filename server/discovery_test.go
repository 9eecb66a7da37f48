package server_test

import (
	"net/http"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server/insecure"
)

// bothListeners runs test with an administrator's client at the secure listener, and with a
// client without an identity at the insecure one.
func bothListeners(t *testing.T, c *cluster, test func(*testing.T, *rest.Config)) {
	t.Run("secure", func(t *testing.T) { test(t, c.admin) })
	t.Run("insecure", func(t *testing.T) { test(t, &rest.Config{Host: c.InsecureURL, Dial: insecure.Dial}) })
}

func TestHealthAndMetrics(t *testing.T) {
	c := shared(t)
	bothListeners(t, c, func(t *testing.T, config *rest.Config) {
		client := httpClient(t, config)
		for path, want := range map[string][]string{
			"/healthz":        {"ok"},
			"/livez":          {"ok"},
			"/livez?verbose":  {"[+]etcd ok", "livez check passed"},
			"/readyz":         {"ok"},
			"/readyz?verbose": {"[+]controllers ok", "[+]scheduler ok", "[+]certificates ok", "[+]datastore-writes ok", "[+]etcd ok", "[+]informer-sync ok", "readyz check passed"},
			"/healthz/etcd":   {"ok"},
			"/version":        {`"gitVersion": "` + version.Full() + `"`},
			"/api":            {"APIVersions"},
			"/metrics": {"apiserver_request_total{", "apiserver_resource_objects{", "workqueue_depth{", "scheduler_pending_pods{", "kubernetes_build_info{",
				"karve_datastore_commit_duration_seconds_bucket{", "karve_datastore_commit_changes_count ", "karve_datastore_revision ", "karve_datastore_keys ", "karve_datastore_live_bytes ", "karve_datastore_commits_total "},
			"/metrics/slis": {"kubernetes_healthchecks_total{"},
		} {
			status, body := get(t, client, config.Host+path)
			if err := contains(status, body, want...); err != nil {
				t.Errorf("%s: %v", path, err)
			}
		}
		if status, _ := get(t, client, config.Host+"/this-is-nowhere"); status != http.StatusNotFound {
			t.Errorf("/this-is-nowhere: got %d, want %d", status, http.StatusNotFound)
		}
	})
}

// With these documents, other services verify this cluster's service account tokens.
func TestServiceAccountIssuerDiscovery(t *testing.T) {
	c := shared(t)
	ns := c.namespace(t)
	config := c.asServiceAccount(t, ns)
	client := httpClient(t, config)
	status, body := get(t, client, c.URL+"/.well-known/openid-configuration")
	if err := contains(status, body, `"issuer":"https://kubernetes.default.svc.cluster.local"`, "/openid/v1/jwks", "ES256"); err != nil {
		t.Errorf("openid-configuration: %v", err)
	}
	status, body = get(t, client, c.URL+"/openid/v1/jwks")
	if err := contains(status, body, `"kty":"EC"`, `"crv":"P-256"`); err != nil {
		t.Errorf("jwks: %v", err)
	}
	status, _ = get(t, httpClient(t, rest.AnonymousClientConfig(c.admin)), c.URL+"/openid/v1/jwks")
	if status != http.StatusForbidden {
		t.Errorf("jwks without a token: got %d, want %d as upstream's roles have it", status, http.StatusForbidden)
	}
}
