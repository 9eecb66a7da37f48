package external

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/metrics"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/kine/external/liststream"
)

// Backend is a database behind kine's driver, with what the driver lacks: its errors are those
// that etcd's clients understand, and no failure looks like an answer. DESIGN.md lists where
// kine's do.
type Backend struct {
	external *Database
	backend  server.Backend
	reads    *sql.DB
	tail     *tail
	table    *generic.Generic // kine's dialect
	writer   *writer          // nil: the driver writes itself
	reader   *reader          // nil: the driver reads itself
	watchdog *watchdog        // nil: calls have the driver's patience
	state    func(error)
	warn     func(error)
	away     atomic.Bool
	life     context.Context
	cancel   context.CancelFunc
	release  func()
	work     sync.WaitGroup // of the driver
	metrics  prometheus.Registerer
	shown    []prometheus.Collector
}

var _ server.Backend = (*Backend)(nil)

// Close closes the connections and waits until they are closed. Close the shim first.
func (b *Backend) Close() {
	b.cancel()
	if b.reader != nil {
		b.reader.end()
	}
	b.work.Wait()
	b.release()
	for _, c := range b.shown {
		b.metrics.Unregister(c)
	}
}

// status makes the error of a call one of etcd's: Unavailable, unless the caller has ended the
// call, the database has refused its key or value, or kine's error is one of etcd's already. A caller who has ended the call gets that as the
// error, because drivers describe it as a connection that failed.
func (b *Backend) status(ctx context.Context, err error) error {
	if err == nil {
		b.tell(nil)
		return nil
	}
	if _, etcds := status.FromError(err); etcds {
		return err
	}
	if ended := ctx.Err(); ended != nil {
		if errors.Is(ended, context.DeadlineExceeded) {
			b.suspect()
		}
		return ended
	}
	if refusedData(err) { // the database works
		b.tell(nil)
		return status.Error(codes.InvalidArgument, b.named(err).Error())
	}
	err = b.named(err)
	b.tell(err)
	return status.Error(codes.Unavailable, err.Error())
}

// named is an error with the database, and without its password.
func (b *Backend) named(err error) error {
	return fmt.Errorf("datastore %s: %s", b.external, b.external.scrub(err))
}

// tell reports a state that differs from the one before.
func (b *Backend) tell(err error) {
	if b.away.Swap(err != nil) != (err != nil) && b.state != nil {
		b.state(err)
	}
}

// Start begins to follow the table, until ctx ends.
func (b *Backend) Start(ctx context.Context) error {
	return b.status(ctx, b.start(ctx))
}

func (b *Backend) start(ctx context.Context) error {
	var marks int
	if err := b.reads.QueryRowContext(ctx, "SELECT COUNT(*) FROM kine WHERE name = '"+compactKey+"'").Scan(&marks); err != nil {
		return err
	}
	if marks == 0 { // a row of kine's: its prev_revision is that up to which history was removed
		mark := &write{ctx: ctx, key: compactKey, created: true, value: []byte{}}
		if answer := b.writer.insert(mark); answer.err != nil && !errors.Is(answer.err, server.ErrKeyExists) {
			return answer.err
		}
	}
	newest, err := b.revision(ctx, generic.CurrentRevSQL)
	if err != nil {
		return err
	}
	b.tail.at.Store(newest)
	life, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(b.life, cancel)
	b.work.Go(func() {
		defer cancel()
		defer stop()
		b.tail.run(life)
	})
	if _, err := b.Create(ctx, server.HealthKey, []byte(server.HealthVal), 0); err != nil && err != server.ErrKeyExists {
		return err
	}
	b.work.Go(func() { b.expire(ctx) })
	return nil
}

// revision returns the revision that a statement selects, or 0 if the table is empty.
func (b *Backend) revision(ctx context.Context, statement string) (int64, error) {
	var revision sql.NullInt64
	err := b.reads.QueryRowContext(ctx, statement).Scan(&revision)
	return revision.Int64, err
}

// Get reads one key. It returns nil if the key does not exist.
func (b *Backend) Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	if b.reader != nil && revision == 0 && !keysOnly && !strings.Contains(key, "\x00") { // kine translates such a key
		rev, kv, err := b.reader.get(limited, key)
		if err == nil {
			b.tail.wake(rev) // as a read of kine's does
		}
		return rev, kv, b.status(ctx, heard(limited, err))
	}
	rev, kv, err := b.backend.Get(limited, key, revision, keysOnly)
	return rev, kv, b.status(ctx, heard(limited, err))
}

// List reads a range. kine's List does not ask sql.Rows for its error, so a lost connection could
// cut a list short without an error. List asks. kine's ListStream asks too, but it returns a
// revision that its goroutine writes at the same time.
func (b *Backend) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	if err := b.checkBounds(key, end, revision); err != nil {
		return 0, nil, err
	}
	limited, cancel := b.limit(ctx)
	defer cancel()
	var read result
	rev, kvs, err := b.backend.List(context.WithValue(limited, resultKey{}, &read), key, end, limit, revision, keysOnly)
	if cut := read.err(); cut != nil {
		err = cut
	}
	if err != nil {
		return rev, nil, b.status(ctx, heard(limited, err))
	}
	b.tail.wake(rev)
	return rev, kvs, b.status(ctx, nil)
}

// errBounds is the error for ranges that kine's drivers do not know: they answer that there are no keys.
var errBounds = status.Error(codes.Unimplemented, "this datastore can list a range that has an end, and all keys of the newest revision: set range_end to the first key after the range")

// checkBounds refuses a range of all keys from one on. A range without bounds is all keys, which kine knows for the newest revision
// only.
func (b *Backend) checkBounds(key, end string, revision int64) error {
	if all := key == "" && end == ""; end == "\x00" || all && revision != 0 {
		return errBounds
	}
	return nil
}

// ListStream reads a range key by key. It reads all of it before it returns: the driver of an SQL
// database would hold a connection until its reader, who may have stopped, has read everything.
func (b *Backend) ListStream(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) server.ListResult {
	return liststream.Of(b.List(ctx, key, end, limit, revision, keysOnly))
}

// Count counts a range.
func (b *Backend) Count(ctx context.Context, key, end string, revision int64) (int64, int64, error) {
	if err := b.checkBounds(key, end, 0); err != nil { // kine counts all keys at any revision
		return 0, 0, err
	}
	limited, cancel := b.limit(ctx)
	defer cancel()
	rev, count, err := b.backend.Count(limited, key, end, revision)
	return rev, count, b.status(ctx, heard(limited, err))
}

// Create puts a key that does not exist.
func (b *Backend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	recorded, o := withOutcome(limited)
	var read result
	rev, err := b.backend.Create(context.WithValue(recorded, resultKey{}, &read), key, value, lease)
	if cut := read.err(); cut != nil && err == nil && o.revision == 0 {
		err = cut // kine took the failed read for a key that was never there
	}
	// The second attempt is for a key that has been deleted; nobody reads after it.
	if failed := o.failure(err == server.ErrKeyExists && o.attempts < 2); failed != nil {
		err = failed
	} else if err == nil {
		rev = o.revision // of a key that was deleted, kine returns the database's newest revision, not that of the row
		if rev == 0 {
			err = b.unwritten(key)
		}
	}
	if err == server.ErrKeyExists {
		rev = max(rev, b.tail.at.Load()) // kine's revision is that of this server's writes
	}
	return rev, b.status(ctx, heard(limited, err))
}

// unwritten is the error for a write that the driver reports as done although there was another
// value, which has gone since.
func (b *Backend) unwritten(key string) error {
	return status.Errorf(codes.Unavailable, "datastore %s: %s has changed meanwhile", b.external, key)
}

// Update puts a key that is at revision.
func (b *Backend) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	recorded, o := withOutcome(limited)
	rev, kv, ok, err := b.backend.Update(recorded, key, value, revision, lease)
	if failed := o.failure(err == nil && (kv == nil || kv.ModRevision != revision)); failed != nil {
		err = failed
	}
	return rev, kv, ok && err == nil, b.status(ctx, heard(limited, err))
}

// Delete removes a key that is at revision, or at any if that is 0. For that, kine would delete
// only a key that never existed.
func (b *Backend) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	if revision == 0 {
		return b.deleteAny(ctx, key)
	}
	limited, cancel := b.limit(ctx)
	defer cancel()
	recorded, o := withOutcome(limited)
	rev, kv, ok, err := b.backend.Delete(recorded, key, revision)
	if failed := o.failure(err == nil && (kv == nil || kv.ModRevision != revision)); failed != nil {
		err = failed
	} else if kv == nil {
		ok = false // kine reports that it deleted a key that never existed
	}
	return rev, kv, ok && err == nil, b.status(ctx, heard(limited, err))
}

// deleteAny removes a key at whatever revision it is.
func (b *Backend) deleteAny(ctx context.Context, key string) (int64, *server.KeyValue, bool, error) {
	for {
		rev, there, err := b.Get(ctx, key, 0, false)
		if err != nil || there == nil {
			return rev, nil, false, err
		}
		rev, _, ok, err := b.Delete(ctx, key, there.ModRevision)
		if err != nil || ok {
			return rev, there, ok, err
		} // otherwise another client was faster
	}
}

// DbSize is the size of the table, in bytes.
func (b *Backend) DbSize(ctx context.Context) (int64, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	size, err := b.backend.DbSize(limited)
	return size, b.status(ctx, heard(limited, err))
}

// CurrentRevision is the newest revision that this server knows of. It is no sign that the database answers.
func (b *Backend) CurrentRevision(ctx context.Context) (int64, error) {
	revision, err := b.backend.CurrentRevision(ctx) // of this server's writes
	if err != nil {
		return revision, b.status(ctx, err)
	}
	return max(revision, b.tail.at.Load()), nil
}

// figures registers kine's metrics. It returns the registerer for the driver, which would end
// the process if it registered its own a second time.
func (b *Backend) figures(to prometheus.Registerer) prometheus.Registerer {
	if b.metrics = to; to == nil {
		return nil
	}
	r := registerer{b}
	r.MustRegister(metrics.SQLTotal, metrics.SQLTime, metrics.CompactTotal, metrics.InsertErrorsTotal)
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
