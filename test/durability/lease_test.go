package durability

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"time"
)

// Leases of the datastore keep Events: no Event goes before its time, even across kills, and each
// goes some time after it.
func TestEventsExpireAcrossKills(t *testing.T) {
	const ttl = 12 * time.Second
	const path = "/api/v1/namespaces/default/events"
	s := newServer(t, "--event-ttl", ttl.String())
	made := map[string]time.Time{} // when the client asked for it
	there := func(api *API) map[string]bool {
		t.Helper()
		list, _, err := api.List(t.Context(), path, "fieldSelector=reason=Durability")
		if err != nil {
			t.Fatal(err)
		}
		back, have := time.Now(), map[string]bool{}
		for _, o := range list {
			have[o.Metadata.Name] = true
		}
		for name, at := range made {
			if !have[name] && back.Before(at.Add(ttl)) {
				t.Errorf("%s is gone %v after its creation, want %v", name, back.Sub(at), ttl)
			}
		}
		return have
	}
	for life := range 3 {
		api := s.start()
		there(api)
		for n := range 10 {
			name := fmt.Sprintf("event-%d-%d", life, n)
			at := time.Now()
			if err := api.Do(t.Context(), http.MethodPost, path, map[string]any{
				"apiVersion": "v1", "kind": "Event", "metadata": map[string]any{"name": name}, "reason": "Durability",
				"involvedObject": map[string]any{"kind": "Namespace", "name": "default", "namespace": "default"},
			}, nil); err != nil {
				t.Fatal(err)
			}
			made[name] = at
			there(api)
		}
		api.HTTP.CloseIdleConnections()
		s.kill()
	}
	api := s.start()
	for deadline := time.Now().Add(5 * time.Minute); len(there(api)) > 0; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("events still exist %v after the last start, want none after %v", 5*time.Minute, ttl)
		}
	}
	api.HTTP.CloseIdleConnections()
	s.stop()
}

// Renewals of nodes' Leases survive a kill, as all writes do. In mode relaxed a kill may lose the
// last renewals since another write, but none is invented, none is older than the last one before
// another write, and no resourceVersion is used twice.
func TestHeartbeatsAcrossKills(t *testing.T) {
	for _, mode := range []string{"full", "relaxed"} {
		t.Run(mode, func(t *testing.T) {
			const leases, others = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases", "/api/v1/namespaces/default/configmaps"
			s := newServer(t, "--durability", mode)
			type lease struct {
				tried, acknowledged, kept int // numbers of renewals; kept: those that a kill must not lose
				revision                  int64
			}
			var all [3]lease
			newest, lost := int64(0), 0
			write := func(api *API, method, collection, name, rv string, value int) int64 {
				t.Helper()
				o := Object{APIVersion: "coordination.k8s.io/v1", Kind: "Lease", Metadata: Metadata{
					Name: name, ResourceVersion: rv, Annotations: map[string]string{ValueAnnotation: fmt.Sprint(value)},
				}}
				if collection == others {
					o.APIVersion, o.Kind = "v1", "ConfigMap"
				}
				path := collection
				if method == http.MethodPut {
					path += "/" + name
				}
				var got Object
				if err := api.Do(t.Context(), method, path, o, &got); err != nil {
					t.Fatal(err)
				}
				if got.Revision() <= newest {
					t.Errorf("%s was given resourceVersion %d after %d", path, got.Revision(), newest)
				}
				newest = got.Revision()
				return newest
			}
			keep := func() {
				for i := range all {
					all[i].kept = all[i].acknowledged
				}
			}
			api := s.start()
			for i := range all {
				all[i].revision = write(api, http.MethodPost, leases, fmt.Sprintf("node-%d", i), "", 0)
			}
			keep()
			for life := range rounds(t, 4) {
				for n := range 10 + rand.IntN(50) {
					i := rand.IntN(len(all))
					all[i].tried++
					all[i].revision = write(api, http.MethodPut, leases, fmt.Sprintf("node-%d", i), fmt.Sprint(all[i].revision), all[i].tried)
					all[i].acknowledged = all[i].tried
					if rand.IntN(20) == 0 {
						write(api, http.MethodPost, others, fmt.Sprintf("other-%d-%d", life, n), "", 0)
						keep()
					}
				}
				if mode == "full" {
					keep()
				}
				api.HTTP.CloseIdleConnections()
				s.kill()
				api = s.start()
				for i := range all {
					l := &all[i]
					var got Object
					if err := api.Do(t.Context(), http.MethodGet, fmt.Sprintf("%s/node-%d", leases, i), nil, &got); err != nil {
						t.Fatal(err)
					}
					var value int
					if _, err := fmt.Sscan(got.Value(), &value); err != nil || value < l.kept || value > l.tried {
						t.Errorf("life %d: node-%d has renewal %q, want one from %d to %d", life, i, got.Value(), l.kept, l.tried)
					}
					lost += l.acknowledged - value
					l.acknowledged, l.revision = value, got.Revision()
				}
				keep()
			}
			api.HTTP.CloseIdleConnections()
			s.stop()
			t.Logf("kills took %d renewals", lost)
		})
	}
}
