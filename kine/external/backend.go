package external

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/k3s-io/kine/pkg/metrics"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Backend is a database behind kine's driver, with what the driver lacks: its errors are those
// that etcd's clients understand, and no failure looks like an answer. DESIGN.md lists where
// kine's do.
type Backend struct {
	external *Database
	backend  server.Backend
	state    func(error)
	away     atomic.Bool
	failed   chan error
	cancel   context.CancelFunc
	release  func()
	work     sync.WaitGroup  // of the driver
	done     <-chan struct{} // of Start's context
	metrics  prometheus.Registerer
	shown    []prometheus.Collector
}

var _ server.Backend = (*Backend)(nil)

// Failed receives the reason when the driver has given up.
func (b *Backend) Failed() <-chan error { return b.failed }

func (b *Backend) fail(err error) {
	select {
	case b.failed <- fmt.Errorf("%s: %s", b.external, b.external.scrub(err)):
	default:
	}
}

// ending tells whether Close has begun.
func (b *Backend) ending() bool {
	select {
	case <-b.done:
		return true
	default:
		return false
	}
}

// Close closes the connections and waits until they are closed. Close the shim first.
func (b *Backend) Close() {
	running.Lock()
	delete(running.all, b)
	running.Unlock()
	b.cancel()
	b.work.Wait()
	b.release()
	for _, c := range b.shown {
		b.metrics.Unregister(c)
	}
}

// status makes the error of a call one of etcd's: Unavailable, unless the caller has ended the
// call or kine's error is one of etcd's already.
func (b *Backend) status(ctx context.Context, err error) error {
	if err == nil {
		b.tell(nil)
		return nil
	}
	if _, etcds := status.FromError(err); etcds || ctx.Err() != nil {
		return err
	}
	err = fmt.Errorf("datastore %s: %s", b.external, b.external.scrub(err))
	b.tell(err)
	return status.Error(codes.Unavailable, err.Error())
}

// limit bounds a call of a driver that would wait for a lost connection as long as its caller
// does.
func (b *Backend) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if b.external.kind.patience == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, b.external.kind.patience)
}

// tell reports a state that differs from the one before.
func (b *Backend) tell(err error) {
	if b.away.Swap(err != nil) != (err != nil) && b.state != nil {
		b.state(err)
	}
}

// unchanged is the error for a write that the driver reports as a conflict although the key is
// as the caller expected it. The database has refused the write, for example because its disk
// is full; after a conflict the API server would try again for ever.
func (b *Backend) unchanged(key string) error {
	return status.Errorf(codes.Unavailable, "datastore %s: the database refused to write %s", b.external, key)
}

// Start begins to follow the log of the database.
func (b *Backend) Start(ctx context.Context) error {
	b.done = ctx.Done() // before kine's goroutines start
	return b.status(ctx, contain(func() error { return b.backend.Start(ctx) }))
}

// Get reads one key. It returns nil if the key does not exist. kine's revision is then the
// newest that this server has seen, although other servers may have written to the database.
// Get therefore also reads a key that always exists, whose answer has the database's revision.
// The API server waits for that revision before a consistent list.
func (b *Backend) Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	rev, kv, err := b.backend.Get(limited, key, revision, keysOnly)
	if err == nil && kv == nil && revision == 0 {
		rev, _, err = b.backend.Get(limited, server.HealthKey, 0, true)
	}
	return rev, kv, b.status(ctx, err)
}

// List reads a range. kine does not ask sql.Rows for its error, so a lost connection can cut a
// list short without an error. List therefore counts the keys.
func (b *Backend) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	const attempts = 3 // the count includes a write that became visible meanwhile
	for range attempts {
		rev, kvs, err := b.backend.List(limited, key, end, limit, revision, keysOnly)
		if err != nil || !b.external.kind.sql || end == "" || limit > 0 && int64(len(kvs)) >= limit {
			return rev, kvs, b.status(ctx, err)
		}
		at := revision
		if at == 0 && len(kvs) > 0 { // the revision of an empty list may be old
			at = rev
		}
		_, count, err := b.backend.Count(limited, key, end, at)
		if err != nil || count == int64(len(kvs)) {
			return rev, kvs, b.status(ctx, err)
		}
	}
	return 0, nil, status.Errorf(codes.Unavailable, "datastore %s: the list of %s is not complete", b.external, key)
}

// Count counts a range.
func (b *Backend) Count(ctx context.Context, key, end string, revision int64) (int64, int64, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	rev, count, err := b.backend.Count(limited, key, end, revision)
	return rev, count, b.status(ctx, err)
}

// Create puts a key that does not exist.
func (b *Backend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	rev, err := b.backend.Create(limited, key, value, lease)
	return rev, b.status(ctx, err)
}

// Update puts a key that is at revision.
func (b *Backend) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	rev, kv, ok, err := b.backend.Update(limited, key, value, revision, lease)
	if err == nil && !ok && kv != nil && kv.ModRevision == revision {
		err = b.unchanged(key)
	}
	return rev, kv, ok && err == nil, b.status(ctx, err)
}

// Delete removes a key that is at revision, or at any if that is 0.
func (b *Backend) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	rev, kv, ok, err := b.backend.Delete(limited, key, revision)
	switch {
	case err != nil:
	case kv == nil:
		ok = false // kine reports that it deleted a key that never existed
	case !ok && len(kv.Value) == 0:
		kv = nil // the mark that a deleted key leaves
	case !ok && kv.ModRevision == revision:
		err = b.unchanged(key)
	}
	return rev, kv, ok && err == nil, b.status(ctx, err)
}

// Watch returns the events in a range from revision on.
func (b *Backend) Watch(ctx context.Context, key, end string, revision int64) server.WatchResult {
	return b.backend.Watch(ctx, key, end, revision)
}

func (b *Backend) watchesAll() bool { return b.external.kind.sql }

// DbSize is the size of the table, in bytes.
func (b *Backend) DbSize(ctx context.Context) (int64, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	size, err := b.backend.DbSize(limited)
	return size, b.status(ctx, err)
}

// CurrentRevision is the newest revision that this server knows of.
func (b *Backend) CurrentRevision(ctx context.Context) (int64, error) {
	revision, err := b.backend.CurrentRevision(ctx)
	return revision, b.status(ctx, err)
}

// Compact removes history up to revision, except for the newest compactRetain revisions.
func (b *Backend) Compact(ctx context.Context, revision int64) (now int64, err error) {
	err = contain(func() (err error) {
		now, err = b.backend.Compact(ctx, revision)
		return err
	})
	return now, b.status(ctx, err)
}

// WaitForSyncTo returns when events up to revision are on their way to the watches.
func (b *Backend) WaitForSyncTo(revision int64) { b.backend.WaitForSyncTo(revision) }

// figures registers kine's metrics. It returns the registerer for the driver, which would end
// the process if it registered its own a second time.
func (b *Backend) figures(to prometheus.Registerer) prometheus.Registerer {
	if b.metrics = to; to == nil {
		return nil
	}
	r := registerer{b}
	if b.external.kind.sql {
		r.MustRegister(metrics.SQLTotal, metrics.SQLTime, metrics.CompactTotal, metrics.InsertErrorsTotal)
	}
	return r
}

// registerer registers what is not registered yet, and remembers it for Close.
type registerer struct{ b *Backend }

func (r registerer) Register(c prometheus.Collector) error {
	err := r.b.metrics.Register(c)
	if err == nil {
		r.b.shown = append(r.b.shown, c)
	}
	return err
}

func (r registerer) MustRegister(all ...prometheus.Collector) {
	for _, c := range all {
		r.Register(c) // if it fails, another server of this process has them
	}
}

func (r registerer) Unregister(c prometheus.Collector) bool { return r.b.metrics.Unregister(c) }
