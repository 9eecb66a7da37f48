package server_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server/insecure"
)

// bothListeners runs test with an administrator's client at the secure listener, and with a
// client without an identity at the insecure one.
func bothListeners(t *testing.T, c *cluster, test func(*testing.T, *rest.Config)) {
	t.Run("secure", func(t *testing.T) { test(t, c.admin) })
	t.Run("insecure", func(t *testing.T) { test(t, &rest.Config{Host: c.InsecureURL, Dial: insecure.Dial}) })
}

func TestClientsAtBothListeners(t *testing.T) {
	c := shared(t)
	bothListeners(t, c, func(t *testing.T, config *rest.Config) {
		client, err := kubernetes.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		all, err := client.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, n := range all.Items {
			names = append(names, n.Name)
		}
		for _, want := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
			if !slices.Contains(names, want) {
				t.Errorf("namespaces: got %v, want %s among them", names, want)
			}
		}
		info, err := client.Discovery().ServerVersion()
		if err != nil {
			t.Fatal(err)
		}
		if want := version.Full(); info.GitVersion != want || !strings.HasPrefix(want, version.Kubernetes+"+karve.") {
			t.Errorf("/version: got %s, want %s, of %s+karve.N", info.GitVersion, want, version.Kubernetes)
		}
		if got := "v" + info.Major + "." + info.Minor + "."; !strings.HasPrefix(version.Kubernetes, got) {
			t.Errorf("/version: got major and minor %s, want those of %s", got, version.Kubernetes)
		}
	})
}

func TestDiscovery(t *testing.T) {
	c := shared(t)
	want := []string{"v1 pods", "v1 pods/binding", "apps/v1 deployments", "rbac.authorization.k8s.io/v1 clusterroles",
		"apiextensions.k8s.io/v1 customresourcedefinitions", "apiregistration.k8s.io/v1 apiservices",
		"admissionregistration.k8s.io/v1 validatingadmissionpolicies", "flowcontrol.apiserver.k8s.io/v1 flowschemas"}
	for name, legacy := range map[string]bool{"aggregated": false, "legacy": true} {
		t.Run(name, func(t *testing.T) {
			client, err := discovery.NewDiscoveryClientForConfig(c.admin)
			if err != nil {
				t.Fatal(err)
			}
			client.UseLegacyDiscovery = legacy
			var groups []*metav1.APIGroup
			var lists []*metav1.APIResourceList
			eventually.Nil(t, "complete discovery, without the aggregated APIs of other tests", func() (err error) {
				groups, lists, err = client.ServerGroupsAndResources()
				return err
			})
			if len(groups) < 20 {
				t.Errorf("got %d groups, want all that upstream has, 20 and more", len(groups))
			}
			got := map[string]bool{}
			for _, list := range lists {
				for _, r := range list.APIResources {
					got[list.GroupVersion+" "+r.Name] = true
				}
			}
			for _, resource := range want {
				if !got[resource] {
					t.Errorf("not discovered: %s", resource)
				}
			}
		})
	}
	// Both kinds of clients above fall back on the other form, so request the aggregated form
	// explicitly.
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.URL+"/apis", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	answer, err := httpClient(t, c.admin).Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	var list metav1.TypeMeta
	if err := json.NewDecoder(answer.Body).Decode(&list); err != nil || list.Kind != "APIGroupDiscoveryList" {
		t.Errorf("/apis, aggregated: got kind %q and error %v, want APIGroupDiscoveryList", list.Kind, err)
	}
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
