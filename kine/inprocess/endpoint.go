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
	end   context.CancelFunc
	work  sync.WaitGroup

	interval time.Duration // of notifications

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

// Serve starts a store and gives it a URL, until [Endpoint.Close]. ctx bounds only the start. A watch
// that asked for notifications gets one at most interval after a write.
func Serve(ctx context.Context, store Store, api API, interval time.Duration) (*Endpoint, error) {
	e := &Endpoint{
		store: store, api: api, interval: interval,
		notified: map[*clientWatch]bool{},
	}
	e.ctx, e.end = context.WithCancel(context.WithoutCancel(ctx))
	revision, err := int64(0), store.Start(e.ctx)
	if err == nil {
		revision, err = store.CurrentRevision(ctx)
	}
	if err != nil {
		e.end()
		return nil, fmt.Errorf("start datastore: %w", err)
	}
	endpoints.Lock()
	endpoints.made++
	e.url = fmt.Sprintf("%s%d", Scheme, endpoints.made)
	if endpoints.byURL == nil {
		endpoints.byURL = map[string]*Endpoint{}
	}
	endpoints.byURL[e.url] = e
	endpoints.Unlock()
	e.work.Go(func() { e.notify(revision) })
	return e, nil
}

// Close takes the URL back, and ends the clients that have been made.
func (e *Endpoint) Close() {
	endpoints.Lock()
	delete(endpoints.byURL, e.url)
	endpoints.Unlock()
	e.end()
	e.work.Wait()
}

// URL is what [NewClient] wants.
func (e *Endpoint) URL() string { return e.url }

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
