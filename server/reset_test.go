package server_test

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/server/snapshots"
)

// A reset reads the same UIDs from stored objects as the API server returns: every one, and no
// others.
func TestResetReadsTheUIDsThatTheAPIReturns(t *testing.T) {
	c := shared(t)
	contents, err := datastore.ReadDump(t.Context(), filepath.Join(c.dir, datastore.EngineFile))
	fatal(t, err)
	_, lists, err := discovery.ServerGroupsAndResources(c.Discovery())
	fatal(t, err)
	var served []string
	for _, list := range lists {
		for _, r := range list.APIResources {
			gv, err := schema.ParseGroupVersion(list.GroupVersion)
			fatal(t, err)
			if !slices.Contains(r.Verbs, "list") || r.Name == "componentstatuses" {
				continue
			}
			found, err := c.dynamic.Resource(gv.WithResource(r.Name)).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				continue // belonged to another test and has gone
			}
			for _, item := range found.Items {
				served = append(served, string(item.GetUID()))
			}
		}
	}
	known, without := 0, 0
	contents.Each(func(key string, value []byte) bool {
		uid := snapshots.ObjectUID(value)
		switch {
		case slices.Contains(served, uid):
			known++
		case uid == "" && (strings.HasPrefix(key, "/registry/ranges/") || strings.HasPrefix(key, "/registry/masterleases/") || strings.HasPrefix(key, "/registry/peerserverleases/") || !strings.HasPrefix(key, "/registry/")):
		case uid == "" && bytes.HasPrefix(value, []byte("k8s\x00")):
			t.Errorf("%s has no uid", key)
		default:
			without++ // another test created or deleted it in between
		}
		return true
	})
	if known < 150 {
		t.Errorf("%d of %d stored objects have a uid that is served, want 150 at least", known, contents.Keys())
	}
	t.Logf("%d known, %d not", known, without)
	for _, value := range []string{"", "k8s\x00", "k8s\x00\x12\xff", "{", `{"metadata":3}`, "k8s:enc:aescbc:v1:key:x", "k8s\x00\x0a\x05abc"} {
		if uid := snapshots.ObjectUID([]byte(value)); uid != "" {
			t.Errorf("%q has the uid %q", value, uid)
		}
	}
	if uid := snapshots.ObjectUID([]byte(`{"kind":"Boat","metadata":{"name":"a","uid":"1-2"}}`)); uid != "1-2" {
		t.Errorf("an object in JSON has the uid %q", uid)
	}
}

func TestServersOwnKeysAreRecognised(t *testing.T) {
	for key, want := range map[string]bool{
		"/registry/masterleases/192.0.2.1":                          true,
		"/registry/leases/kube-system/apiserver-abc":                true,
		"/registry/leases/kube-system/kube-scheduler":               false,
		"/registry/services/endpoints/default/kubernetes":           true,
		"/registry/services/endpoints/default/kubernetes-dashboard": false,
		"/registry/services/specs/default/kubernetes":               false,
		"/registry/endpointslices/default/kubernetes":               true,
		"/registry/configmaps/default/compact_rev_key":              false,
		"/registry/karve/cluster":                                   true,
		"/registry/karve/clusters":                                  false,
		"compact_rev_key":                                           true,
	} {
		if got := snapshots.OfServer(key); got != want {
			t.Errorf("%s is of the server: %v, want %v", key, got, want)
		}
	}
}
