package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/karve-k8s/karve/datastore"
	datadir "github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
)

// A seeded cluster and one that upstream's hooks created are the same: each object, its field
// managers, the keys, and the encoding.
func TestSeededClusterEqualsUpstreams(t *testing.T) {
	compares(t, deviations.Bootstrap)
	encryption := writeFile(t, "encryption.yaml", `
apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: ["*.*"]
  providers:
  - aesgcm: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
  - identity: {}
`)
	for name, configure := range map[string]func(*testing.T, *server.Config){
		"by default": func(*testing.T, *server.Config) {},
		"encrypted, as JSON, with every API, in two address families": func(_ *testing.T, c *server.Config) {
			c.ServiceClusterIPRange = "fd00:10:96::/112,10.96.0.0/16"
			c.APIServerArgs = []string{
				"encryption-provider-config=" + encryption, "storage-media-type=application/json",
				"runtime-config=api/all=true", "feature-gates=AllBeta=true",
			}
		},
		"with less: groups off, no RBAC, no controllers": func(_ *testing.T, c *server.Config) {
			c.NoControllers, c.DisableScheduler = true, true
			c.APIServerArgs = []string{
				"runtime-config=flowcontrol.apiserver.k8s.io/v1=false,scheduling.k8s.io/v1=false",
				"authorization-mode=AlwaysAllow", "enable-priority-and-fairness=false", "disable-admission-plugins=Priority",
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			certs := t.TempDir()
			upstreams := history{configure: configure, upstreams: true, certs: certs}.settle(t, nil)
			seeded := history{configure: configure, certs: certs}.settle(t, upstreams)
			seeded.compare(t, upstreams)
			// Ten more objects depend on the server itself: its presence, its address, its
			// key.
			if most, all := seeded.atOnce, len(seeded.stored); all-most > 10 {
				t.Errorf("of %d keys, %d were written in one transaction; want all but 10", all, most)
			}
			if upstreams.atOnce != 1 {
				t.Errorf("upstream wrote %d keys in one transaction; want 1: the hooks create keys one by one", upstreams.atOnce)
			}
			if strings.Contains(seeded.log, "creating them") {
				t.Errorf("upstream's slow hook was needed; log:\n%s", seeded.log)
			}
		})
	}
}

// history is a cluster that starts, settles and stops.
type history struct {
	configure func(*testing.T, *server.Config)
	upstreams bool   // upstream's hooks instead of seeding
	certs     string // directory of the certificates; made by the first cluster
	dir       string // data directory; empty is a new one
	between   func(*testing.T, *cluster)
}

// state is everything that a cluster stores.
type state struct {
	objects map[string]map[string]any // by resource, namespace and name
	stored  map[string]string         // by key: the beginning of the value
	atOnce  int                       // the most keys that one transaction created
	checks  []string                  // the checks of /readyz
	log     string
}

// settle runs a cluster until nothing in it changes any more. If like is not nil, it runs
// until the objects are those of like.
func (h history) settle(t *testing.T, like *state) *state {
	t.Helper()
	dir := h.dir
	if dir == "" {
		dir = t.TempDir()
	}
	kept := filepath.Join(h.certs, "certs")
	_, err := os.Stat(kept)
	if _, own := os.Stat(filepath.Join(dir, "certs")); err == nil && own != nil {
		copyKeys(t, filepath.Join(dir, "certs"), kept)
	}
	c := up(t, dir, func(config *server.Config) {
		h.configure(t, config)
		if h.upstreams {
			config.Upstream = []string{"bootstrap", "loopback"}
		}
	})
	s := &state{}
	if like == nil {
		s.objects = c.still(t)
	} else {
		// After a failure, the comparison runs once more to report the differences.
		_ = eventually.Poll(func() error {
			if s.objects, err = c.everything(t.Context()); err != nil {
				return err
			}
			if len(difference(s.objects, like.objects)) > 0 {
				return errors.New("not the same yet")
			}
			return nil
		})
	}
	_, body := get(t, httpClient(t, c.admin), c.URL+"/readyz?verbose")
	for line := range strings.Lines(body) {
		if name, ok := strings.CutSuffix(strings.TrimSpace(line), " ok"); ok {
			s.checks = append(s.checks, name)
		}
	}
	slices.Sort(s.checks)
	if h.between != nil {
		h.between(t, c)
	}
	c.down(t)
	if _, err := os.Stat(kept); h.certs != "" && err != nil {
		copyKeys(t, kept, filepath.Join(dir, "certs"))
	}
	s.stored, s.atOnce = stored(t, dir)
	s.log = c.log.String()
	return s
}

// still waits until the objects have not changed for two seconds.
func (c *cluster) still(t *testing.T) map[string]map[string]any {
	t.Helper()
	var last map[string]map[string]any
	since := time.Now()
	err := eventually.Poll(func() error {
		now, err := c.everything(t.Context())
		if err != nil {
			return err
		}
		if last == nil || len(difference(now, last)) > 0 {
			last, since = now, time.Now()
		}
		if time.Since(since) < 2*time.Second {
			return errors.New("it still moves")
		}
		return nil
	})
	fatal(t, err)
	return last
}

// election is a lease that a controller creates some seconds after the start, with coordinated
// leader election. A cluster may have settled before or after that.
const election = "leases/kube-system/leader-election-controller"

// everything returns all objects of all resources, without what depends on chance or the
// clock.
func (c *cluster) everything(ctx context.Context) (map[string]map[string]any, error) {
	lists, err := c.Discovery().ServerPreferredResources()
	if err != nil && !discovery.IsGroupDiscoveryFailedError(err) {
		return nil, err
	}
	ports, err := c.ports(ctx)
	if err != nil {
		return nil, err
	}
	all := map[string]map[string]any{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || r.Name == "componentstatuses" || r.Name == "events" {
				continue
			}
			objects, err := c.dynamic.Resource(gv.WithResource(r.Name)).List(ctx, metav1.ListOptions{})
			if err != nil {
				return nil, fmt.Errorf("list %s: %w", r.Name, err)
			}
			for i := range objects.Items {
				o := &objects.Items[i]
				if r.Name+"/"+o.GetNamespace()+"/"+o.GetName() == election {
					continue
				}
				all[fmt.Sprintf("%s.%s %s/%s", r.Name, gv.Group, o.GetNamespace(), o.GetName())] = lasting(o, ports)
			}
		}
	}
	return all, nil
}

// ports returns the ports that the kernel chose, for this start and for the first one.
func (c *cluster) ports(ctx context.Context) ([]string, error) {
	ports := []string{c.URL[strings.LastIndex(c.URL, ":")+1:]}
	service, err := c.CoreV1().Services("default").Get(ctx, "kubernetes", metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return append(ports, service.Spec.Ports[0].TargetPort.String()), nil
}

// lasting returns o without identity and times, with 0 in place of each port.
func lasting(o *unstructured.Unstructured, ports []string) map[string]any {
	text, _ := o.MarshalJSON()
	for _, port := range ports { // as a word: the digits may also be a part of a hash
		text = regexp.MustCompile(`\b`+port+`\b`).ReplaceAll(text, []byte("0"))
	}
	var object map[string]any
	_ = json.Unmarshal(text, &object)
	forget(object, "uid", "resourceVersion", "creationTimestamp", "time", "lastTransitionTime", "renewTime", "acquireTime", "holderIdentity",
		"f:lastTransitionTime") // two managers own it if both set it in the same second
	return object
}

func forget(in any, keys ...string) {
	switch in := in.(type) {
	case map[string]any:
		for k, v := range in {
			if nested, _ := v.(map[string]any); len(nested) == 0 && slices.Contains(keys, k) {
				delete(in, k)
			}
			forget(v, keys...)
		}
	case []any:
		for _, v := range in {
			forget(v, keys...)
		}
	}
}

// stored returns what the datastore in dir holds: keys, and the beginning of values, which
// shows their encoding. It also returns the largest number of keys that were created in one
// transaction.
func stored(t *testing.T, dir string) (map[string]string, int) {
	t.Helper()
	engine, closeStore := openStore(t, dir)
	defer closeStore()
	resp, err := engine.Range(t.Context(), datastore.RangeRequest{Key: "/", End: datastore.PrefixEnd("/")})
	fatal(t, err)
	keys, created, most := map[string]string{}, map[int64]int{}, 0
	for _, kv := range resp.KVs {
		if strings.Contains(kv.Key, "/events/") || strings.HasSuffix(kv.Key, "/"+election) {
			continue // upstream's controllers can conflict, and report that in events
		}
		created[kv.CreateRevision]++
		most = max(most, created[kv.CreateRevision])
		start := min(len(kv.Value), 4)
		keys[kv.Key] = string(kv.Value[:start])
		if words := strings.SplitN(string(kv.Value), ":", 6); len(words) == 6 && words[1] == "enc" {
			keys[kv.Key] = strings.Join(words[:5], ":") // k8s:enc:PROVIDER:v1:KEY
		}
	}
	return keys, most
}

// openStore opens the datastore of a control plane that has stopped.
func openStore(t *testing.T, dir string) (*datastore.Engine, func()) {
	t.Helper()
	lock, err := datadir.Acquire(dir)
	fatal(t, err)
	engine, err := datastore.OpenEngine(lock, datastore.Options{})
	if err != nil {
		lock.Close()
		t.Fatal(err)
	}
	return engine, func() {
		if err := errors.Join(engine.Close(), lock.Close()); err != nil {
			t.Error(err)
		}
	}
}

func (s *state) compare(t *testing.T, want *state) {
	t.Helper()
	if len(want.objects) < 10 || len(want.stored) < 10 {
		t.Errorf("upstream made only %d objects in %d keys: there is nothing to compare", len(want.objects), len(want.stored))
	}
	for _, d := range difference(s.objects, want.objects) {
		t.Error(d)
	}
	for key, value := range want.stored {
		if got, ok := s.stored[key]; !ok || got != value {
			t.Errorf("stored at %s: got %q, want %q as upstream", key, got, value)
		}
	}
	for key := range s.stored {
		if _, ok := want.stored[key]; !ok {
			t.Errorf("stored at %s: upstream has no such key", key)
		}
	}
	if !slices.Equal(s.checks, want.checks) {
		t.Errorf("/readyz: got\n%v, want\n%v", s.checks, want.checks)
	}
}

// difference describes how got differs from want, with one object or field per line.
func difference(got, want map[string]map[string]any) []string {
	var all []string
	names := slices.Sorted(maps.Keys(want))
	for name := range got {
		if want[name] == nil {
			all = append(all, name+": upstream makes no such object")
		}
	}
	for _, name := range names {
		if got[name] == nil {
			all = append(all, name+": missing")
			continue
		}
		fields := maps.Clone(want[name])
		maps.Copy(fields, got[name])
		for field := range fields {
			g, _ := json.Marshal(got[name][field])
			w, _ := json.Marshal(want[name][field])
			if !bytes.Equal(g, w) {
				all = append(all, fmt.Sprintf("%s %s:\ngot  %.700s\nwant %.700s", name, field, g, w))
			}
		}
	}
	return all
}
