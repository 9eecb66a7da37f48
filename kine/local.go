package kine

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/karve-k8s/karve/kine/etcdapi"
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
func register(ctx context.Context, store store, api service) *local {
	locals.Lock()
	defer locals.Unlock()
	locals.made++
	l := &local{
		endpoint: fmt.Sprintf("%s%d", LocalScheme, locals.made),
		store:    store, api: api, ctx: ctx,
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

// notify tells the watches that asked for it the revision, progressInterval after
// it has moved: without that, the resourceVersion of a resource where nothing
// happens would be compacted under its watchers. While nothing is written it
// waits for the next write, and no timer runs. A backend that is away for a while
// is asked again. On a socket our own API is told to do the same; kine's bridge has
// its own timer.
func (l *local) notify(told int64) {
	for l.ctx.Err() == nil {
		l.waitForWrite(told + 1)
		select {
		case <-time.After(progressInterval):
		case <-l.ctx.Done():
			return
		}
		revision, err := l.store.CurrentRevision(l.ctx)
		if err != nil || revision <= told {
			continue
		}
		told = revision
		if api, ok := l.api.(*etcdapi.Server); ok {
			api.Notify()
		}
		l.mu.Lock()
		for w := range l.notified {
			w.cursor.RequestProgress()
		}
		l.mu.Unlock()
	}
}

// waitForWrite returns when something has been written at revision or after it, or
// when it cannot find out.
func (l *local) waitForWrite(revision int64) {
	cursor, err := l.store.open(l.ctx, "/", "0", revision, false, nil) // all keys that begin with a slash
	if err != nil {
		return
	}
	defer cursor.Close()
	cursor.Next(l.ctx)
}
