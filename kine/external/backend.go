package external

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
	"github.com/k3s-io/kine/pkg/metrics"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Backend is kine's table in a database, with kine's statements: its errors are those
// that etcd's clients understand, and no failure looks like an answer. DESIGN.md lists where
// kine's do.
type Backend struct {
	external *Database
	reads    *sql.DB
	tail     *tail
	table    *generic.Generic // kine's dialect
	writer   *writer
	reader   *reader // nil: each read is a query of its own
	watchdog *watchdog
	newest   atomic.Int64 // the newest revision that this server has written or read
	state    func(error)
	warn     func(error)
	wentBack func(error)
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
	err := b.start(ctx)
	if isAnswer(err) {
		return fmt.Errorf("datastore %s: %w", b.external, b.external.safe(err))
	}
	return b.status(ctx, err)
}

func (b *Backend) start(ctx context.Context) error {
	var marks int
	if err := b.reads.QueryRowContext(ctx, "SELECT COUNT(*) FROM kine WHERE name = '"+compactKey+"'").Scan(&marks); err != nil {
		return err
	}
	if marks == 0 { // a row of kine's: its prev_revision is that up to which history was removed
		mark := &write{ctx: ctx, key: compactKey, created: true, value: []byte{}}
		if _, err := b.write(mark); err != nil {
			return err
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
	if _, err := b.create(ctx, server.HealthKey, []byte(server.HealthVal), 0); err != nil && err != server.ErrKeyExists {
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
			b.advance(rev)
		}
		return rev, kv, b.status(ctx, guardError(limited, err))
	}
	batch, err := b.list(limited, key, "", 1, revision, false, keysOnly)
	return batch.CurrentRev, newestOf(batch), b.status(ctx, guardError(limited, err))
}

// newestOf is the key of a list of one, or nil.
func newestOf(batch server.EventBatch) *server.KeyValue {
	if len(batch.Events) == 0 || batch.Events[0].Delete {
		return nil
	}
	return batch.Events[0].KV
}

// List reads a range.
func (b *Backend) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	batch, err := b.list(limited, key, end, limit, revision, false, keysOnly)
	if err != nil {
		return batch.CurrentRev, nil, b.status(ctx, guardError(limited, err))
	}
	kvs := make([]*server.KeyValue, len(batch.Events))
	for i, e := range batch.Events {
		kvs[i] = e.KV
	}
	return batch.CurrentRev, kvs, b.status(ctx, nil)
}

// list reads a range, or one key without an end, in one statement.
func (b *Backend) list(ctx context.Context, key, end string, limit, revision int64, deleted, keysOnly bool) (server.EventBatch, error) {
	var rows *sql.Rows
	var err error
	known := b.newest.Load()
	if key = b.table.TranslateStartKey(key); revision == 0 {
		rows, err = b.table.ListCurrent(ctx, key, end, limit, deleted, keysOnly)
	} else {
		rows, err = b.table.List(ctx, key, end, limit, revision, deleted, keysOnly)
	}
	if err != nil {
		return server.EventBatch{}, err
	}
	batch, _, err := eventsOf(rows, revision, !keysOnly, false)
	if err == nil {
		err = b.checkRevision(known, batch.CurrentRev)
	}
	b.advance(batch.CurrentRev)
	return batch, err
}

// eventsOf reads the rows of a statement of kine's at a revision, or at the newest one if that is 0, and the revision up to which history was
// removed. kine does not ask sql.Rows for its error, so a lost connection would cut a list short without one.
func eventsOf(rows *sql.Rows, revision int64, value, old bool) (batch server.EventBatch, compacted int64, err error) {
	batch, compacted, err = sqllog.RowsToEvents(rows, value, old)
	switch {
	case err != nil:
	case rows.Err() != nil:
		err = rows.Err()
	case batch.CurrentRev == 0:
		err = server.ErrGRPCUnhealthy
	case revision > 0 && revision < compacted:
		err = server.ErrCompacted
	case revision > batch.CurrentRev:
		err = server.ErrFutureRev
	}
	return batch, compacted, err
}

// advance remembers a revision that is in the table, and wakes the loop that follows the table.
func (b *Backend) advance(revision int64) {
	for old := b.newest.Load(); old < revision && !b.newest.CompareAndSwap(old, revision); old = b.newest.Load() {
	}
	b.tail.wake(revision)
}

// ListStream is for clients of kine's bridge on a socket, which a database has not.
func (b *Backend) ListStream(context.Context, string, string, int64, int64, bool) server.ListResult {
	keys, errs := make(chan *server.KeyValue), make(chan error, 1)
	close(keys)
	errs <- server.ErrNotSupported
	return server.ListResult{KVc: keys, Errorc: errs}
}

// Count counts a range.
func (b *Backend) Count(ctx context.Context, key, end string, revision int64) (int64, int64, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	key = b.table.TranslateStartKey(key)
	if revision == 0 {
		rev, count, err := b.table.CountCurrent(limited, key, end)
		return rev, count, b.status(ctx, guardError(limited, err))
	}
	rev, compacted, count, err := b.table.Count(limited, key, end, revision)
	switch {
	case err != nil:
	case revision > rev:
		err = server.ErrFutureRev
	case revision < compacted:
		err = server.ErrCompacted
	}
	return rev, count, b.status(ctx, guardError(limited, err))
}

// createTries is how often a key that is deleted and created by others meanwhile is tried to be created.
const createTries = 5

// Create puts a key that does not exist.
func (b *Backend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	rev, err := b.create(limited, key, value, lease)
	return rev, b.status(ctx, guardError(limited, err))
}

func (b *Backend) create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	var previous int64 // the revision at which the key was deleted
	for range createTries {
		rev, err := b.write(&write{ctx: ctx, key: key, created: true, previous: previous, ttl: lease, value: value})
		if rev != 0 || err != nil {
			return rev, err
		}
		batch, err := b.list(ctx, key, "", 1, 0, true, true)
		switch {
		case err != nil:
			return batch.CurrentRev, err
		case len(batch.Events) == 0: // the compaction has removed that it was deleted
			previous = 0
		case !batch.Events[0].Delete:
			return batch.CurrentRev, server.ErrKeyExists
		default:
			previous = batch.Events[0].KV.ModRevision
		}
	}
	return 0, status.Errorf(codes.Unavailable, "datastore %s: %s keeps changing", b.external, key)
}

// write returns the revision of a row, or 0 if the key is at another revision than the previous one. The column of leases has four bytes.
func (b *Backend) write(one *write) (int64, error) {
	one.ttl = min(one.ttl, math.MaxInt32)
	answer := b.writer.insert(one)
	return answer.revision, answer.err
}

// Update puts a key that is at revision.
func (b *Backend) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	return b.change(ctx, &write{key: key, previous: revision, ttl: lease, value: value})
}

// Delete removes a key that is at revision. kine takes 0 for any revision, which nobody asks for.
func (b *Backend) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	if revision == 0 {
		return 0, nil, false, server.ErrNotSupported
	}
	return b.change(ctx, &write{key: key, deleted: true, previous: revision})
}

// change writes a row after a previous one. If the key is at another revision, it returns the key as it is.
func (b *Backend) change(ctx context.Context, one *write) (int64, *server.KeyValue, bool, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	one.ctx = limited
	rev, err := b.write(one)
	if err != nil {
		return 0, nil, false, b.status(ctx, guardError(limited, err))
	}
	if rev != 0 {
		return rev, &server.KeyValue{Key: one.key, Value: one.value, Lease: one.ttl, ModRevision: rev}, true, b.status(ctx, nil)
	}
	batch, err := b.list(limited, one.key, "", 1, 0, false, false)
	return batch.CurrentRev, newestOf(batch), false, b.status(ctx, guardError(limited, err))
}

// DbSize is the size of the table, in bytes.
func (b *Backend) DbSize(ctx context.Context) (int64, error) {
	limited, cancel := b.limit(ctx)
	defer cancel()
	size, err := b.table.GetSize(limited)
	return size, b.status(ctx, guardError(limited, err))
}

// CurrentRevision is the newest revision that this server knows of. It is no sign that the database answers.
func (b *Backend) CurrentRevision(context.Context) (int64, error) {
	return max(b.newest.Load(), b.tail.at.Load()), nil
}

// register registers kine's metrics, until Close. The driver would end the process where another server of it has them.
func (b *Backend) register(to prometheus.Registerer) {
	if b.metrics = to; to == nil {
		return
	}
	for _, c := range []prometheus.Collector{collectors.NewDBStatsCollector(b.reads, "kine"), metrics.SQLTotal, metrics.SQLTime, metrics.CompactTotal, metrics.InsertErrorsTotal} {
		if to.Register(c) == nil {
			b.shown = append(b.shown, c)
		}
	}
}
