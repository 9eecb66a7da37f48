package endtoend

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"

	"github.com/karve-k8s/karve/internal/eventually"
)

// expected are the objects that change at a restart as they should, by the
// beginnings of their keys in a snapshot.
var expected = []string{
	"events/", "events.events.k8s.io/", // each start reports its own
	"leases.coordination.k8s.io/",  // they are renewed all the time
	"endpoints/default/kubernetes", // the server's address is taken out at its stop and put back at its start
	"endpointslices.discovery.k8s.io/default/kubernetes",
	"configmaps/kube-public/cluster-info", // it has the server's port, which is another one
}

// virtual are resources that are computed when they are asked for.
var virtual = []string{"componentstatuses"}

// objects is everything the API server has, as JSON by resource, namespace and name.
type objects map[string]string

func stateOf(t *testing.T, p *process) objects {
	t.Helper()
	_, lists, err := discovery.ServerGroupsAndResources(client(t, p.plain()).Discovery())
	if err != nil {
		t.Fatal(err)
	}
	c, err := dynamic.NewForConfig(p.plain())
	if err != nil {
		t.Fatal(err)
	}
	all := objects{}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			if !slices.Contains(r.Verbs, "list") || slices.Contains(virtual, r.Name) {
				continue
			}
			gvr := gv.WithResource(r.Name)
			found, err := c.Resource(gvr).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatalf("list %s: %v", gvr, err)
			}
			for _, item := range found.Items {
				text, err := json.Marshal(item.Object)
				if err != nil {
					t.Fatal(err)
				}
				all[strings.Join([]string{gvr.GroupResource().String(), item.GetNamespace(), item.GetName(), gvr.Version}, "/")] = string(text)
			}
		}
	}
	return all
}

// different lists the keys under which one has something else than the other,
// but for those which are expected to.
func different(one, other objects) (keys []string) {
	for _, k := range slices.Sorted(maps.Keys(one)) {
		if one[k] != other[k] && !slices.ContainsFunc(expected, func(prefix string) bool { return strings.HasPrefix(k, prefix) }) {
			keys = append(keys, k)
		}
	}
	return keys
}

// settled waits until the controllers have nothing left to do, and returns what
// there is then.
func settled(t *testing.T, p *process) objects {
	t.Helper()
	last := stateOf(t, p)
	same := 0
	eventually.Nil(t, "the controllers to come to rest", func() error {
		now := stateOf(t, p)
		changed := append(different(now, last), different(last, now)...)
		last = now
		if len(changed) > 0 {
			same = 0
			return fmt.Errorf("these still change: %q", changed)
		}
		if same++; same < 3 {
			return fmt.Errorf("all was the same %d times", same)
		}
		return nil
	})
	return last
}

const someObjects = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: ships.example.com}
spec:
  group: example.com
  scope: Namespaced
  names: {plural: ships, singular: ship, kind: Ship}
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}}
---
apiVersion: v1
kind: Namespace
metadata: {name: harbour}
---
apiVersion: v1
kind: Secret
metadata: {name: cargo, namespace: harbour}
stringData: {what: "salt & timber"}
---
apiVersion: v1
kind: Service
metadata: {name: pier, namespace: harbour}
spec: {selector: {app: crane}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: crane, namespace: harbour}
spec:
  replicas: 3
  selector: {matchLabels: {app: crane}}
  template:
    metadata: {labels: {app: crane}}
    spec: {containers: [{name: c, image: example.com/none}]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: pilot, namespace: harbour}
rules: [{apiGroups: [""], resources: [pods], verbs: [get]}]
`

// TestRestart compares everything before a restart with everything after it.
func TestRestart(t *testing.T) {
	long(t)
	parallel(t)
	dir := t.TempDir()
	p := start(t, dir)
	p.kubectl("apply", "-f", write(t, "objects.yaml", someObjects))
	p.kubectl("wait", "--for=condition=Established", "crd/ships.example.com")
	p.kubectl("apply", "-f", write(t, "ship.yaml", "{apiVersion: example.com/v1, kind: Ship, metadata: {name: knarr, namespace: harbour}, spec: {oars: 12}}"))
	eventually.Nil(t, "the Pods", func() error {
		if n := strings.Count(p.kubectl("get", "pods", "-n", "harbour", "-o", "name"), "pod/crane-"); n != 3 {
			return fmt.Errorf("there are %d, want 3", n)
		}
		return nil
	})
	before := settled(t, p)
	for _, want := range []string{"ships.example.com/harbour/knarr/v1", "secrets/harbour/cargo/v1", "deployments.apps/harbour/crane/v1"} {
		if before[want] == "" {
			t.Fatalf("the snapshot has no %s, only %q", want, slices.Sorted(maps.Keys(before)))
		}
	}
	p.stop()

	p = start(t, dir)
	after := settled(t, p)
	for _, k := range append(different(before, after), different(after, before)...) {
		t.Errorf("%s\nbefore the restart: %s\nafter it:           %s", k, before[k], after[k])
	}
}
