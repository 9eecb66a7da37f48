package kine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
)

// LocalScheme begins the endpoints that [NewClient] understands.
const LocalScheme = "karve://"

// ErrNotServed: no shim of this process serves that endpoint, or not any more.
var ErrNotServed = errors.New("no datastore of this process has this endpoint")

// local is a store as clients in this process see it. The API is for what is not
// on their hot path, so that there is one translation of etcd's transactions.
type local struct {
	endpoint string
	store    store
	api      service
	ctx      context.Context // ends with the shim

	interval time.Duration // of notifications
	interest interest      // in them: of clients in this process, and of those of the API

	mu       sync.Mutex
	notified map[*clientWatch]bool // watches that want to know the revision now and then
}

// locals are the stores by endpoint. The API server's constructors have only a
// string to hand through to the place where a client is made.
var locals struct {
	sync.Mutex
	byEndpoint map[string]*local
	made       int
}

// register gives a store an endpoint, until ctx ends.
func register(ctx context.Context, store store, api service, interval time.Duration) *local {
	locals.Lock()
	defer locals.Unlock()
	locals.made++
	l := &local{
		endpoint: fmt.Sprintf("%s%d", LocalScheme, locals.made),
		store:    store, api: api, ctx: ctx,
		interval: interval, interest: newInterest(),
		notified: map[*clientWatch]bool{},
	}
	if locals.byEndpoint == nil {
		locals.byEndpoint = map[string]*local{}
	}
	locals.byEndpoint[l.endpoint] = l
	return l
}

func (l *local) unregister() {
	locals.Lock()
	defer locals.Unlock()
	delete(locals.byEndpoint, l.endpoint)
}

func find(endpoint string) (*local, error) {
	locals.Lock()
	defer locals.Unlock()
	l := locals.byEndpoint[endpoint]
	if l == nil {
		return nil, fmt.Errorf("%s: %w", endpoint, ErrNotServed)
	}
	return l, nil
}

// IsLocal tells whether endpoint is one for [NewClient].
func IsLocal(endpoint string) bool { return strings.HasPrefix(endpoint, LocalScheme) }
