package inprocess

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/karve-k8s/karve/kine/pace"
)

// Scheme begins the URLs that [NewClient] understands.
const Scheme = "karve://"

// ErrNotServed means that this process does not serve a datastore at that URL, or no longer.
var ErrNotServed = errors.New("no datastore of this process has this endpoint")

// Endpoint is a datastore that clients of this process reach by a URL.
type Endpoint struct {
	url   string
	store Store
	api   API
	ctx   context.Context // ends when the datastore is no longer served

	interval time.Duration // of notifications
	interest interest      // in them: of clients in this process, and of clients of the API

	paced pace.Watches

	mu       sync.Mutex
	notified map[*clientWatch]bool // watches that asked for notifications
}

// endpoints are those of this process. They are global because upstream's constructors
// hand only a string through to the place where a client is made.
var endpoints struct {
	sync.Mutex
	byURL map[string]*Endpoint
	made  int
}

// Register gives a store a URL until ctx ends or [Endpoint.Unregister] is called. A watch
// that asked for notifications gets one at most interval after a write.
func Register(ctx context.Context, store Store, api API, interval time.Duration) *Endpoint {
	endpoints.Lock()
	defer endpoints.Unlock()
	endpoints.made++
	e := &Endpoint{
		url:   fmt.Sprintf("%s%d", Scheme, endpoints.made),
		store: store, api: api, ctx: ctx,
		interval: interval, interest: newInterest(),
		notified: map[*clientWatch]bool{},
	}
	if endpoints.byURL == nil {
		endpoints.byURL = map[string]*Endpoint{}
	}
	endpoints.byURL[e.url] = e
	return e
}

// Unregister takes the URL back. Clients that have been made end with the context of
// [Register].
func (e *Endpoint) Unregister() {
	endpoints.Lock()
	defer endpoints.Unlock()
	delete(endpoints.byURL, e.url)
}

// URL is what [NewClient] wants.
func (e *Endpoint) URL() string { return e.url }

// AddInterest counts watches of the etcd API that want notifications; delta is 1 or -1.
func (e *Endpoint) AddInterest(delta int) { e.interest.add(delta) }

func find(url string) (*Endpoint, error) {
	endpoints.Lock()
	defer endpoints.Unlock()
	e := endpoints.byURL[url]
	if e == nil {
		return nil, fmt.Errorf("%s: %w", url, ErrNotServed)
	}
	return e, nil
}

// IsEndpoint tells whether url is one for [NewClient].
func IsEndpoint(url string) bool { return strings.HasPrefix(url, Scheme) }
