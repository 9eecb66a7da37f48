package external

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
	"github.com/k3s-io/kine/pkg/query"
	"github.com/k3s-io/kine/pkg/server"
)

const (
	pollBatch    = 500
	pollInterval = time.Second
	// tailBuffer is how many batches a watch may leave unread before it ends.
	tailBuffer = 100
)

// A tail follows the table and hands its events to all watches. Every batch of a watch continues the one before, or the watch ends: its
// client begins it again, and lists if it has to.
type tail struct {
	read readTail
	warn func(error)
	poke chan struct{} // there may be more to read
	most time.Duration // between two reads. A tenth of it passes after one with rows
	at   atomic.Int64  // every event up to it has been handed over; 0: it has not begun
	// doubt makes the next read look whether the table still has what was handed over last: a connection is a new one.
	doubt atomic.Bool
	// known is the newest revision that this server has written or read, and mend is called when the table lacks something.
	known func() int64
	mend  func(context.Context) error

	mu      sync.Mutex
	last    *server.Event // at revision at, if it is not nil
	watches map[chan server.EventBatch]bool
	ended   bool
}

// readTail returns the events after a revision, in order and at most pollBatch of them. Of the same moment are the newest revision, as that of
// the batch, and the one up to which history was removed.
type readTail func(ctx context.Context, revision int64) (server.EventBatch, int64, error)

func newTail(read readTail, warn func(error)) *tail {
	return &tail{read: read, warn: warn, poke: make(chan struct{}, 1), most: pollInterval, watches: map[chan server.EventBatch]bool{},
		known: func() int64 { return 0 }}
}

// wake tells of a revision. It does not wait.
func (t *tail) wake(revision int64) {
	if revision > t.at.Load() {
		select {
		case t.poke <- struct{}{}:
		default: // it is awake
		}
	}
}

// watch returns the batches from now on. The channel is closed when ctx ends, when its reader has left too many of them unread, and when the
// next one would not continue the last.
func (t *tail) watch(ctx context.Context) <-chan server.EventBatch {
	c := make(chan server.EventBatch, tailBuffer)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended {
		close(c)
		return c
	}
	t.watches[c] = true
	context.AfterFunc(ctx, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.drop(c)
	})
	return c
}

// drop ends a watch. mu is held.
func (t *tail) drop(c chan server.EventBatch) {
	if t.watches[c] {
		delete(t.watches, c)
		close(c)
	}
}

// deliver hands a batch to all watches. A full one ends, and gets none of the later batches.
func (t *tail) deliver(batch server.EventBatch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.at.Store(batch.CurrentRev)
	t.last = batch.Events[len(batch.Events)-1]
	for c := range t.watches {
		select {
		case c <- batch:
		default:
			t.drop(c)
		}
	}
}

// restart ends all watches and goes on at a revision, which was read before. A watch that begins later reads a history up to
// that revision or a later one.
func (t *tail) restart(revision int64, end bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for c := range t.watches {
		t.drop(c)
	}
	t.at.Store(revision)
	t.last = nil
	t.doubt.Store(true) // reads what last is
	t.ended = t.ended || end
}

// run follows the table from a revision on, until ctx ends.
func (t *tail) run(ctx context.Context) {
	defer func() { t.restart(t.at.Load(), true) }()
	interval := t.most
	for failing := false; ; {
		before := t.at.Load()
		more, err := t.step(ctx)
		if interval = min(2*interval, t.most); t.at.Load() > before {
			interval = t.most / 10
		}
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			if !failing && !errors.Is(err, context.Canceled) { // which is the end of a call that the watchdog reports
				t.warn(err)
			}
			pause(ctx)
		case !more:
			select {
			case <-t.poke:
			case <-time.After(interval):
			case <-ctx.Done():
				return
			}
		}
		failing = err != nil
	}
}

// step hands over what was read at once. It tells whether there may be more. A revision that is missing is in no transaction, as no
// revision becomes visible after a later one: it was that of a write that failed.
func (t *tail) step(ctx context.Context) (more bool, err error) {
	at, looks := t.at.Load(), t.doubt.Swap(false)
	after := at
	if looks && at > 0 {
		after-- // the row that was handed over last is the first one
	}
	known := t.known()
	batch, compacted, err := t.read(ctx, after)
	switch {
	case err != nil:
	case compacted > at: // by another server, while this one was cut off or suspended: some that the watches lack may be gone
		t.restart(batch.CurrentRev, false)
		return true, nil
	case t.doubt.Load(): // it was read on a new connection
		return true, nil
	case t.lacks(batch, compacted, known, looks):
		if err = t.mend(ctx); err == nil {
			return true, nil
		}
	}
	if err != nil {
		t.doubt.Store(t.doubt.Load() || looks)
		return false, err
	}
	full := len(batch.Events) == pollBatch
	if looks && len(batch.Events) > 0 && batch.Events[0].KV.ModRevision == at {
		t.mu.Lock()
		t.last = batch.Events[0]
		t.mu.Unlock()
		batch.Events = batch.Events[1:]
	}
	if n := len(batch.Events); n > 0 {
		batch.CurrentRev = batch.Events[n-1].KV.ModRevision
		t.deliver(batch)
	}
	return full, nil
}

// lacks tells whether a table has gone back in time: it lacks a revision that this server knows, or has another row in the place of the one
// that was handed over last, with which the batch begins if it looks. What is compacted may be gone.
func (t *tail) lacks(batch server.EventBatch, compacted, known int64, looks bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	at := t.at.Load()
	switch {
	case batch.CurrentRev < max(known, at):
		return true
	case !looks || t.last == nil || compacted >= at:
		return false
	}
	return len(batch.Events) == 0 || !sameRow(batch.Events[0], t.last)
}

func sameRow(a, b *server.Event) bool {
	return a.Create == b.Create && a.Delete == b.Delete && a.KV.ModRevision == b.KV.ModRevision && a.KV.CreateRevision == b.KV.CreateRevision &&
		a.KV.Key == b.KV.Key && bytes.Equal(a.KV.Value, b.KV.Value)
}

// tailReader reads the events of a tail on a connection that it keeps, so that lists which take all others do not delay watches.
type tailReader struct {
	pool     *sql.DB
	query    *query.Named
	watchdog *watchdog
	opened   func() // is called for each new connection
	conn     *sql.Conn
}

func newTailReader(dialect *generic.Generic, w *watchdog) *tailReader {
	return &tailReader{pool: dialect.DB, query: tailQuery(dialect), watchdog: w, opened: func() {}}
}

func tailQuery(dialect *generic.Generic) *query.Named {
	return dialect.AfterAllOldValSQL.Appendf("LIMIT %d", pollBatch)
}

// read is called by one goroutine. After an error, it opens a new connection.
func (r *tailReader) read(ctx context.Context, revision int64) (batch server.EventBatch, compacted int64, err error) {
	defer func(began time.Time) {
		observe(began, err, r.query.Fill([]any{revision}))
		if err != nil {
			r.close()
		}
	}(time.Now())
	rows, end, err := r.watchdog.first(ctx, func(ctx context.Context) (_ *sql.Rows, err error) {
		if r.conn == nil {
			if r.conn, err = r.pool.Conn(ctx); err != nil {
				r.conn = nil
				return nil, err
			}
			r.opened()
		}
		return r.conn.QueryContext(ctx, r.query.Query, revision)
	})
	defer end()
	if err != nil {
		return batch, 0, err
	}
	return tailRows(rows)
}

// tailRows reads the rows of a tailQuery.
func tailRows(rows *sql.Rows) (batch server.EventBatch, compacted int64, err error) {
	batch, compacted, err = sqllog.RowsToEvents(rows, true, true)
	if err == nil {
		err = rows.Err()
	}
	return batch, compacted, err
}

func (r *tailReader) close() {
	if r.conn != nil {
		r.conn.Close()
		r.conn = nil
	}
}

// Watch returns the events of all keys from revision on, which is not 0.
// Every batch has the revision up to which its events are complete, and no event comes twice.
func (b *Backend) Watch(ctx context.Context, revision int64) server.WatchResult {
	ctx, cancel := context.WithCancel(ctx)
	out, errc := make(chan server.EventBatch), make(chan error, 1)
	live := b.tail.watch(ctx) // first, so that no event is missed
	limited, end := b.limit(ctx)
	from, history, err := b.begin(limited, revision)
	err = guardError(limited, err)
	end()
	to := server.WatchResult{CurrentRevision: from.CurrentRevision, CompactRevision: from.CompactRevision, Eventc: out, Errorc: errc}
	if err != nil || from.CompactRevision != 0 {
		if err != nil {
			errc <- b.status(ctx, err)
		}
		cancel()
		close(out)
		return to
	}
	go func() {
		defer cancel()
		defer close(out)
		b.pass(ctx, live, history, out, revision)
	}()
	return to
}

// begin reads the history of a watch. It reads the events itself: kine leaves out the
// value before an event if that value is older than the compaction. etcd does not, as it reads the value as of the revision before the event,
// and a watch of the API server ends without it.
func (b *Backend) begin(ctx context.Context, revision int64) (to server.WatchResult, history server.EventBatch, err error) {
	after := max(revision-1, 1) // the first revision is kine's own
	rows, err := b.table.After(ctx, "", "", after, 0)
	if err != nil {
		return to, history, err
	}
	history, compacted, err := eventsOf(rows, after, true, true)
	if err == server.ErrCompacted {
		to.CompactRevision, err = compacted, nil
	}
	to.CurrentRevision = history.CurrentRev
	return to, history, err
}

// pass passes on the events of a watch, which begin with its history, until it ends.
func (b *Backend) pass(ctx context.Context, from <-chan server.EventBatch, batch server.EventBatch, to chan<- server.EventBatch, start int64) {
	o := order{seen: start - 1}
	for open := true; open; {
		select {
		case to <- o.next(batch):
		case <-ctx.Done():
			return
		}
		select {
		case batch, open = <-from:
		case <-ctx.Done():
			return
		}
	}
}

// order keeps the batches of a watch in order: the first live ones may have events of the history.
type order struct {
	seen int64 // every event up to it has been passed on
}

// next returns what is new in a batch.
func (o *order) next(batch server.EventBatch) server.EventBatch {
	batch = batch.After(o.seen)
	if n := len(batch.Events); n > 0 {
		o.seen = max(o.seen, batch.Events[n-1].KV.ModRevision)
	}
	o.seen = max(o.seen, batch.CurrentRev)
	batch.CurrentRev = o.seen
	return batch
}
