package server_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
	"k8s.io/utils/ptr"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/server"
)

// sharedStore serves an engine as an etcd, for several servers.
func sharedStore(t *testing.T) (_ *datastore.Engine, socket string) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts control planes")
	}
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	fatal(t, err)
	dir := t.TempDir()
	t.Cleanup(func() {
		engine.Close()
		if err := leaks(dir); err != nil {
			t.Error(err)
		}
	})
	etcd, err := kine.Serve(t.Context(), engine, dir)
	fatal(t, err)
	t.Cleanup(func() { etcd.Close() })
	return engine, strings.TrimPrefix(etcd.Endpoint(), "unix://")
}

// times returns options of both components that set the times of their leases.
func times(c *server.Config, lease, renew, retry string) {
	args := []string{"leader-elect-lease-duration=" + lease, "leader-elect-renew-deadline=" + renew, "leader-elect-retry-period=" + retry}
	c.ControllerManagerArgs = append(c.ControllerManagerArgs, args...)
	c.SchedulerArgs = append(c.SchedulerArgs, args...)
}

// sharing starts a server on a shared datastore, whose way to it can be cut. It has the certificates of
// the server like, unless like is nil.
func sharing(t *testing.T, socket, advertise string, like *cluster, configure func(*server.Config)) (*cluster, *relay) {
	t.Helper()
	way := newRelay(t, socket)
	t.Cleanup(way.end)
	dir := t.TempDir()
	if like != nil {
		copyKeys(t, filepath.Join(dir, "certs"), filepath.Join(like.dir, "certs"))
	}
	return up(t, dir, func(c *server.Config) {
		c.DatastoreEndpoint, c.AdvertiseAddress = "http://"+way.listener.Addr().String(), advertise
		if configure != nil {
			configure(c)
		}
	}), way
}

// end stops one of several servers. The others may go on.
func (c *cluster) end(t *testing.T) {
	t.Helper()
	c.cancel()
	if <-c.done; c.err != nil {
		t.Fatalf("%v; log:\n%s", c.err, c.log)
	}
}

// holder returns the identity in a lease, or nothing.
func (c *cluster) holder(t *testing.T, component string) (string, error) {
	lease, err := c.CoordinationV1().Leases("kube-system").Get(t.Context(), component, metav1.GetOptions{})
	if err != nil {
		return "", err
	}
	return ptr.Deref(lease.Spec.HolderIdentity, ""), nil
}

// says waits until the log of a server has the text n times.
func (c *cluster) says(t *testing.T, text string, n int) {
	t.Helper()
	eventually.Nil(t, fmt.Sprintf("the log says %q %d times", text, n), func() error {
		if got := strings.Count(c.log.String(), text); got != n {
			return fmt.Errorf("got %d, log:\n%s", got, c.log)
		}
		return nil
	})
}

// works checks that controllers and scheduler act on what a client of c makes.
func (c *cluster) works(t *testing.T, name string) {
	t.Helper()
	ns := c.namespace(t) // the controllers make its service account
	web := deployment(name, 1)
	web.Spec.Template.Spec.NodeSelector = nil
	create(t, c.AppsV1().Deployments(ns), web)
	c.wantPods(t, ns, 1)
	eventually.Nil(t, "the Pod has a node", func() error {
		pods, err := c.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, p := range pods.Items {
			if p.Spec.NodeName == "" {
				return fmt.Errorf("%s has none: %v", p.Name, p.Status.Conditions)
			}
		}
		return nil
	})
}

// runs waits until the simulated nodes run the Pods of a Deployment.
func (c *cluster) runs(t *testing.T, name string) {
	t.Helper()
	eventually.Nil(t, "the Pod runs", func() error {
		pods, err := c.CoreV1().Pods("").List(t.Context(), metav1.ListOptions{LabelSelector: "app=" + name})
		if err == nil && (len(pods.Items) != 1 || pods.Items[0].Status.Phase != corev1.PodRunning) {
			err = fmt.Errorf("got %v", pods.Items)
		}
		return err
	})
}

// endpoints returns the addresses of the Service kubernetes.
func (c *cluster) endpoints(t *testing.T) ([]string, error) {
	found, err := c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var all []string
	for _, e := range found.Endpoints {
		all = append(all, e.Addresses...)
	}
	slices.Sort(all)
	return all, nil
}

const (
	leadsControllers = "this server leads and runs the controllers"
	leadsScheduler   = "this server leads and runs the scheduler"
)

// Of two servers on one datastore, the first runs controllers and scheduler and applies the manifests, and both serve. When the
// first stops, the second takes over. It does not wait until it asks again, which takes longer than
// this test waits.
func TestServersElectALeader(t *testing.T) {
	engine, socket := sharedStore(t)
	files := t.TempDir()
	place(t, files, "a.yaml", manifest("", "shared", "1"))
	patient := func(c *server.Config) {
		c.ManifestsDir = files
		times(c, "600s", "500s", "300s")
	}
	first, _ := sharing(t, socket, "192.0.2.1", nil, patient)
	second, _ := sharing(t, socket, "192.0.2.2", first, patient)
	if got := controlplaneapiserver.IdentityLeaseRenewIntervalPeriod; got.Seconds() != 10 {
		t.Errorf("servers that are not alone renew their identity every %v, want upstream's 10s", got)
	}
	first.says(t, leadsControllers, 1)
	first.says(t, leadsScheduler, 1)
	second.says(t, "leads and runs the controllers: this server waits until it stops", 1)
	second.says(t, "leads and runs the scheduler: this server waits until it stops", 1)
	status, body := get(t, httpClient(t, second.admin), second.URL+"/readyz?verbose")
	if err := contains(status, body, "[+]controllers ok", "[+]scheduler ok"); err != nil {
		t.Errorf("the second server is not ready: %v", err)
	}
	const applied = "manifests: a.yaml: applied"
	first.says(t, applied, 1)
	place(t, files, "a.yaml", manifest("", "shared", "2"))
	second.has(t, "default", "shared", "2")
	first.says(t, applied, 2)
	second.says(t, applied, 0)
	if _, err := asking(t, second, func(client *control.Client) (*control.Manifests, error) { return client.ApplyManifests(t.Context()) }); err == nil || !strings.Contains(err.Error(), "another one leads") {
		t.Errorf("asked where another server leads: got %v, want an error", err)
	}
	if status, err := asking(t, second, func(client *control.Client) (*control.Manifests, error) { return client.Manifests(t.Context()) }); err != nil || status.Problem != control.AnotherLeads {
		t.Errorf("status where another server leads: got %+v, %v", status, err)
	}
	second.node(t, "machine")
	second.works(t, "before")
	if first, err := second.holder(t, "kube-controller-manager"); err != nil {
		t.Error(err)
	} else if both, err := second.holder(t, "kube-scheduler"); err != nil || both != first {
		t.Errorf("one server holds the leases as %q and %q, %v", first, both, err)
	}
	before := map[string]string{}
	for _, component := range []string{"kube-controller-manager", "kube-scheduler"} {
		var err error
		if before[component], err = second.holder(t, component); err != nil || before[component] == "" {
			t.Errorf("lease %s: holder %q, %v", component, before[component], err)
		}
	}
	eventually.Nil(t, "both are endpoints of the Service kubernetes", func() error {
		all, err := second.endpoints(t)
		if err == nil && fmt.Sprint(all) != "[192.0.2.1 192.0.2.2]" {
			err = fmt.Errorf("got %v", all)
		}
		return err
	})

	// Upstream's reconciler makes the endpoints of these leases, in each server by itself. So the second may
	// write the address once more while the first takes it out.
	leases := func() string {
		t.Helper()
		found, err := engine.Range(t.Context(), datastore.RangeRequest{Key: "/registry/masterleases/", End: "/registry/masterleases0", KeysOnly: true})
		fatal(t, err)
		var all []string
		for _, kv := range found.KVs {
			all = append(all, strings.TrimPrefix(kv.Key, "/registry/masterleases/"))
		}
		return fmt.Sprint(all)
	}
	if got, want := leases(), "[192.0.2.1 192.0.2.2]"; got != want {
		t.Errorf("leases of addresses: got %s, want %s", got, want)
	}
	first.end(t)
	if got, want := leases(), "[192.0.2.2]"; got != want {
		t.Errorf("leases of addresses after the stop of the first server: got %s, want %s", got, want)
	}
	eventually.Nil(t, "the second is the only endpoint of the Service kubernetes", func() error {
		all, err := second.endpoints(t)
		if err == nil && fmt.Sprint(all) != "[192.0.2.2]" {
			err = fmt.Errorf("got %v", all)
		}
		return err
	})
	second.says(t, leadsControllers, 1)
	second.says(t, leadsScheduler, 1)
	for component, identity := range before {
		if now, err := second.holder(t, component); err != nil || now == identity || now == "" {
			t.Errorf("lease %s: holder %q, %v, want another than %q", component, now, err, identity)
		}
	}
	second.says(t, applied, 1)
	second.works(t, "after")
	metrics, err := second.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if want := `leader_election_master_status{name="kube-scheduler"} 1`; err != nil || !strings.Contains(string(metrics), want) {
		t.Errorf("/metrics has no %s: %v", want, err)
	}
	events, err := second.CoreV1().Events("kube-system").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=LeaderElection"})
	if err != nil || !slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.HasSuffix(e.Message, "became leader") }) {
		t.Errorf("events of the election: %v, %v", events, err)
	}
	second.end(t)
	for _, c := range []*cluster{first, second} {
		for line := range strings.Lines(c.log.String()) {
			bad := strings.Contains(line, "level=error") || strings.Contains(line, "level=warning")
			if bad && slices.ContainsFunc([]string{"lock=kube-system/", "leader", "broadcaster"}, func(of string) bool { return strings.Contains(line, of) }) {
				t.Errorf("an election without trouble logs %s", line)
			}
		}
	}
}

// A leader that cannot reach the datastore stops its controllers, its scheduler and its simulated nodes,
// and another server takes over. When the first can reach it again, it serves, and leads again in the same process.
func TestServerCutOffStopsLeading(t *testing.T) {
	_, socket := sharedStore(t)
	short := func(c *server.Config) {
		times(c, "12s", "4s", "1s")
		c.SimulateNodes = []string{"1"}
	}
	first, way := sharing(t, socket, "192.0.2.1", nil, short)
	second, _ := sharing(t, socket, "192.0.2.2", first, short)
	first.says(t, leadsControllers, 1)
	first.says(t, leadsScheduler, 1)
	first.works(t, "before")
	first.runs(t, "before")

	way.mu.Lock()
	open := true
	unlock := func() {
		if open {
			open = false
			way.mu.Unlock()
		}
	}
	defer unlock()
	first.says(t, "this server no longer leads and no longer runs the controllers", 1)
	first.says(t, "this server no longer leads and no longer runs the scheduler", 1)
	second.says(t, leadsControllers, 1)
	second.says(t, leadsScheduler, 1)
	second.works(t, "while-away")
	second.runs(t, "while-away")
	unlock()
	eventually.Nil(t, "the first server is ready again", func() error {
		status, body := get(t, httpClient(t, first.admin), first.URL+"/readyz?verbose")
		return contains(status, body, "[+]controllers ok", "[+]scheduler ok")
	})
	first.works(t, "back")
	if text := first.log.String(); strings.Count(text, leadsControllers) != 1 {
		t.Errorf("the first server leads beside the second; log:\n%s", text)
	}

	second.end(t)
	first.says(t, leadsControllers, 2)
	first.says(t, leadsScheduler, 2)
	first.works(t, "again")
	first.runs(t, "again")
	first.end(t)
}
