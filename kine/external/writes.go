package external

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/k3s-io/kine/pkg/server"
)

// Bounds of a transaction of writes. A longer one would delay the writes of other servers, which
// wait for its lock.
const (
	batchWrites = 128
	batchBytes  = 256 << 10
	writeLimit  = 10 * time.Second
	// takenTries is how often a write takes another revision, because another server has filled
	// the one that the database gave it.
	takenTries = 5
)

// A write is a row for kine's table. Its revision is given by the database.
type write struct {
	ctx              context.Context // of the caller
	key              string
	created, deleted bool
	previous, ttl    int64
	value            []byte
	answer           chan written // has room for the answer
}

// arguments are those of kine's INSERT (kine pkg/drivers/generic, Insert).
func (w *write) arguments() []any {
	return []any{w.previous, w.key, columnOf(w.created), columnOf(w.deleted), w.previous, w.ttl, w.value, w.key, w.previous}
}

// columnOf is the value of a column that is a number in kine's table.
func columnOf(is bool) int64 {
	if is {
		return 1
	}
	return 0
}

// written is what has become of a write.
type written struct {
	revision int64 // 0: no row, because the key is at another revision
	err      error
	unknown  bool // err leaves open whether the row is there
}

// An inserter inserts rows into kine's table.
type inserter interface {
	// insert writes a batch in one transaction, which no other server's overlaps, and returns
	// their revisions. After an error nothing of the batch is there, unless the error is unknown.
	// It inserts nothing and returns errNotEmpty if the range is not nil and has a key.
	insert(ctx context.Context, batch []*write, none *keyRange) ([]int64, error)
	// translate makes server.ErrKeyExists of the error of a unique index.
	translate(error) error
	// taken tells whether the error is of a revision that another server has filled.
	taken(error) bool
	close()
}

// A keyRange is the keys from start on that come before end, but for one.
type keyRange struct{ start, end, except string }

// errNotEmpty means that the range of an insert has keys.
var errNotEmpty = errors.New("the datastore is not empty")

// errClosed is the answer to writes after Close.
var errClosed = errors.New("closed")

// unknown is an error that leaves open whether a transaction has been committed.
type unknown struct{ error }

func (u unknown) Unwrap() error { return u.error }

// A writer writes the rows of all callers. The writes that wait while a transaction runs are the next
// transaction, so that they share its round trip and its write to the disk.
//
// Each transaction holds a lock that all servers of the database share. So revisions become visible
// in their order: whoever reads revision n has every older one.
type writer struct {
	table inserter
	queue chan *write
	ended <-chan struct{}
}

func newWriter(ctx context.Context, table inserter) *writer {
	return &writer{table: table, queue: make(chan *write, batchWrites), ended: ctx.Done()}
}

// run writes until the context of newWriter ends.
func (w *writer) run() {
	defer w.table.close()
	for {
		select {
		case first := <-w.queue:
			w.commit(w.waiting(first))
		case <-w.ended:
			return
		}
	}
}

// waiting returns the next batch.
func (w *writer) waiting(first *write) []*write {
	batch, size := []*write{first}, len(first.value)
	for len(batch) < batchWrites && size < batchBytes {
		select {
		case next := <-w.queue:
			batch, size = append(batch, next), size+len(next.value)
		default:
			return batch
		}
	}
	return batch
}

// commit writes a batch. Where a database refuses a write, the others of the batch are written one by one.
func (w *writer) commit(batch []*write) {
	wanted := batch[:0]
	for _, one := range batch {
		if err := one.ctx.Err(); err != nil {
			one.answer <- written{err: err}
			continue
		}
		wanted = append(wanted, one)
	}
	if len(wanted) == 0 {
		return
	}
	revisions, err := w.try(wanted)
	if err == nil {
		for i, one := range wanted {
			one.answer <- written{revision: revisions[i]}
		}
		return
	}
	if open := (unknown{}); errors.As(err, &open) {
		for _, one := range wanted {
			one.answer <- written{err: open.error, unknown: true}
		}
		return
	}
	if len(wanted) > 1 && !isLost(err) {
		for _, one := range wanted {
			w.commit([]*write{one})
		}
		return
	}
	for _, one := range wanted {
		one.answer <- written{err: w.table.translate(err)}
	}
}

// try writes a batch; a single write as often as its revision is taken.
func (w *writer) try(batch []*write) (revisions []int64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), writeLimit)
	defer cancel()
	for range takenTries {
		revisions, err = w.table.insert(ctx, batch, nil)
		if err == nil || len(batch) > 1 || !w.table.taken(err) {
			break
		}
	}
	return revisions, err
}

// lost is an error of the connection, before anything was committed.
type lost struct{ error }

func (l lost) Unwrap() error { return l.error }

func isLost(err error) bool {
	l := lost{}
	return errors.As(err, &l)
}

// insert hands a write over and waits for its answer, or until its context ends.
func (w *writer) insert(one *write) written {
	one.answer = make(chan written, 1)
	if err := one.ctx.Err(); err != nil {
		return written{err: err}
	}
	select {
	case w.queue <- one:
	case <-one.ctx.Done():
		return written{err: one.ctx.Err()}
	case <-w.ended:
		return written{err: errClosed}
	}
	select {
	case answer := <-one.answer:
		return answer
	case <-one.ctx.Done():
		return written{err: one.ctx.Err(), unknown: true}
	case <-w.ended:
		return written{err: errClosed, unknown: true}
	}
}

// transaction is the part of a kine transaction that its Append uses.
type transaction struct {
	server.Transaction // nil: another method than those here panics
	writer             *writer
	outcome            *outcome
}

// Insert writes and commits. The column of leases has four bytes.
func (t *transaction) Insert(ctx context.Context, key string, created, deleted bool, previousRevision, ttl int64, value []byte) (int64, error) {
	answer := t.writer.insert(&write{ctx: ctx, key: key, created: created, deleted: deleted, previous: previousRevision, ttl: min(ttl, math.MaxInt32), value: value})
	t.outcome.attempts++
	if !t.outcome.unknown || answer.revision != 0 { // an attempt after one that may have succeeded tells nothing
		t.outcome.written = answer
	}
	return answer.revision, answer.err
}

// Commit has nothing left to do.
func (t *transaction) Commit() error { return nil }

// Rollback has nothing to take back.
func (t *transaction) Rollback() error { return nil }
