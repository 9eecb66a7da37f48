package openapi

import (
	"context"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/informers"
)

// holdPoll is how often a held request looks for a policy during a start.
const holdPoll = 10 * time.Millisecond

// HoldIndex returns the wait for the API server's own requests for the index of v3.
// The plugin of MutatingAdmissionPolicies asks for the index in the middle of a start, and
// then every five seconds (k8s.io/apiserver pkg/admission/plugin/policy/mutating).
// It has no use for the index before there is a policy, so the index is built when
// everything else is up: when settled is closed.
func HoldIndex(shared informers.SharedInformerFactory, settled <-chan struct{}) func(context.Context) {
	policies := shared.Admissionregistration().V1().MutatingAdmissionPolicies()
	synced, lister := policies.Informer().HasSynced, policies.Lister()
	return func(ctx context.Context) {
		tick := time.NewTicker(holdPoll)
		defer tick.Stop()
		for {
			if synced() {
				if all, err := lister.List(labels.Everything()); err != nil || len(all) > 0 {
					return
				}
			}
			select {
			case <-settled:
				return
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}
}

// WhenPrepared returns h, but requests for OpenAPI wait until prepared is closed, because
// OpenAPI is installed last. Until then a server further down the chain would answer
// with its own documents, and would have to build all of them.
func WhenPrepared(prepared <-chan struct{}, h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasPrefix(r.URL.Path, prefix) {
			select {
			case <-prepared:
			case <-r.Context().Done():
			}
		}
		h.ServeHTTP(w, r)
	})
}
