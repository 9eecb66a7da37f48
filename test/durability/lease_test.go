package durability

import (
	"fmt"
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
