package watches

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/rest"
)

// watchers are the informers of all types that can be watched.
type watchers struct {
	types []string
	seen  *requests
}

// watch starts the informers, and returns when all of them have synced.
func watch(ctx context.Context, config *rest.Config, renew time.Duration) (*watchers, error) {
	w := &watchers{seen: &requests{renew: renew, begun: map[string]int{}}}
	config = rest.CopyConfig(config)
	config.QPS, config.WarningHandler = -1, rest.NoWarnings{} // Endpoints are deprecated
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return counting{next, w.seen} })
	found, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	lists, err := found.ServerPreferredResources()
	if err != nil {
		return nil, err
	}
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	factory := dynamicinformer.NewDynamicSharedInformerFactory(client, 0)
	for _, list := range discovery.FilteredBy(discovery.SupportsAllVerbs{Verbs: []string{"list", "watch"}}, lists) {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for _, resource := range list.APIResources {
			one := version.WithResource(resource.Name)
			factory.ForResource(one).Informer()
			w.types = append(w.types, one.String())
		}
	}
	factory.Start(ctx.Done())
	for one, ok := range factory.WaitForCacheSync(ctx.Done()) {
		if !ok {
			return nil, fmt.Errorf("the informer of %v has not synced: %w", one, context.Cause(ctx))
		}
	}
	w.seen.settle()
	return w, nil
}

// requests counts the requests of the informers.
type requests struct {
	renew time.Duration

	mu       sync.Mutex
	begun    map[string]int // lists, and watches that begin with all objects, by path, since settle
	renewals int
}

// settle resets the counts after the first lists.
func (r *requests) settle() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.begun)
	r.renewals = 0
}

// counting is a transport that counts lists and watches.
type counting struct {
	next http.RoundTripper
	seen *requests
}

func (c counting) RoundTrip(request *http.Request) (*http.Response, error) {
	query := request.URL.Query()
	if request.Method != http.MethodGet || !query.Has("resourceVersion") && !query.Has("watch") && !query.Has("limit") {
		return c.next.RoundTrip(request) // discovery
	}
	c.seen.mu.Lock()
	if query.Get("watch") == "true" && query.Get("sendInitialEvents") != "true" {
		c.seen.renewals++
	} else {
		c.seen.begun[request.URL.Path]++
	}
	c.seen.mu.Unlock()
	if c.seen.renew > 0 && query.Get("watch") == "true" {
		request = request.Clone(request.Context())
		seconds := c.seen.renew.Seconds() * (0.7 + 0.6*rand.Float64())
		query.Set("timeoutSeconds", strconv.Itoa(max(int(seconds), 1)))
		request.URL.RawQuery = query.Encode()
	}
	return c.next.RoundTrip(request)
}

// gone returns an error unless the history at a revision was compacted.
func gone(ctx context.Context, client dynamic.Interface, revision string) error {
	_, err := client.Resource(configMaps).List(ctx, metav1.ListOptions{ResourceVersion: revision, ResourceVersionMatch: metav1.ResourceVersionMatchExact, Limit: 1})
	if errors.IsResourceExpired(err) {
		return nil
	}
	return fmt.Errorf("revision %s, of the beginning, can still be read at the end (%v): nothing was compacted", revision, err)
}

var configMaps = schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}
