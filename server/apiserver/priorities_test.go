package apiserver

import (
	"maps"
	"testing"
	_ "unsafe" // for go:linkname

	"k8s.io/apimachinery/pkg/runtime/schema"
	_ "k8s.io/kubernetes/cmd/kube-apiserver/app"
	controlplaneapiserver "k8s.io/kubernetes/pkg/controlplane/apiserver"
)

//go:linkname upstreamPriorities k8s.io/kubernetes/cmd/kube-apiserver/app.apiVersionPriorities
var upstreamPriorities map[schema.GroupVersion]controlplaneapiserver.APIServicePriority

func TestPrioritiesMatchUpstream(t *testing.T) {
	if len(upstreamPriorities) < 30 {
		t.Fatalf("upstream's table has %d rows: it was renamed or moved, look for it", len(upstreamPriorities))
	}
	got := priorities()
	if maps.Equal(got, upstreamPriorities) {
		return
	}
	for gv, want := range upstreamPriorities {
		if got[gv] != want {
			t.Errorf("%v: got %+v, want %+v", gv, got[gv], want)
		}
	}
	for gv := range got {
		if _, ok := upstreamPriorities[gv]; !ok {
			t.Errorf("%v: upstream no longer has it", gv)
		}
	}
}
