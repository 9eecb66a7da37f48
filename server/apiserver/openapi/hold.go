package openapi

import (
	"context"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/informers"
)

// holdPoll is how often a waiting request checks for a policy during a start.
const holdPoll = 10 * time.Millisecond

// HoldIndex returns a function that delays the API server's own requests for the index of v3.
// The MutatingAdmissionPolicy plugin requests the index in the middle of a start, and then
// every five seconds (k8s.io/apiserver pkg/admission/plugin/policy/mutating). It does not need
// the index while there is no policy, so the index is built when everything else is up, which
// is when settled is closed.
//
// A server that emulates a version without the policies (--emulated-version before 1.36) does not
// serve their v1. An informer for them would never sync, and the server would wait for it.
func HoldIndex(shared informers.SharedInformerFactory, settled <-chan struct{}) func(context.Context) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.MutatingAdmissionPolicy) {
		return func(ctx context.Context) {
			select {
			case <-settled:
			case <-ctx.Done():
			}
		}
	}
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

// holdWithin calls hold with at most half of the time that a request has. The other half is for the
// index. A request that times out is logged as an error, by the client and by the server.
func holdWithin(ctx context.Context, hold func(context.Context)) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Until(deadline)/2)
		defer cancel()
	}
	hold(ctx)
}

// WhenPrepared returns a handler that delays requests for OpenAPI until prepared is closed,
// because OpenAPI is installed last. Before that, a server further down the chain would answer
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
