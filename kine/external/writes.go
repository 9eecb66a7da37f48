package external

import (
	"context"
	"database/sql"
	"errors"
	"math"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/internal/fence"
)

// Bounds of a transaction of writes. A longer one would delay the writes of other servers, which
// wait for its lock.
const (
	batchWrites = 128
	batchBytes  = 256 << 10
	// writeLimit bounds a transaction on a connection, and lockLimit its wait for the lock.
	writeLimit = 10 * time.Second
	lockLimit  = 8 * time.Second
	// endedTries is how often a transaction is tried that the database ends for the sake of another one.
	endedTries = 5
	// endLimit is how long a transaction may go on after the end.
	endLimit = 2 * time.Second
)

// A write is a row for the table. Its revision is given by the database.
type write struct {
	ctx              context.Context // of the caller
	key              string
	created, deleted bool
	previous, ttl    int64
	value            []byte
	answer           chan written // has room for the answer
}

// columnOf is the value of a column that is a number in the table.
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
}

// An inserter inserts rows into the table.
type inserter interface {
	// insert writes a batch in one transaction, which no other server's overlaps, and returns
	// their revisions. outcomeOf tells what an error means.
	// It inserts nothing and returns errTakenBack if a fence was closed while the batch waited for a connection or the lock, errLocked if it has
	// not got the lock, and errBehind if a revision would not be above the table's, or if the table lacks the known one.
	insert(ctx context.Context, batch []*write, known int64) ([]int64, error)
	// ping asks the database for any answer, on another connection.
	ping(ctx context.Context) error
	// primary is the connection to the database that takes writes.
	primary() *sql.DB
	close()
}

// A writer writes the rows of all callers. The writes that wait while a transaction runs are the next
// transaction, so that they share its round trip and its write to the disk.
//
// Each transaction holds a lock that all servers of the database share. So revisions become visible
// in their order: whoever reads revision n has every older one.
type writer struct {
	table inserter
	wake  func(revision int64) // is told of each batch
	known func() int64         // a revision that the table has
	mend  func(context.Context) error
	queue chan *write
	ended <-chan struct{}
	late  context.Context // ends endLimit after ended
}

func newWriter(ctx context.Context, table inserter) *writer {
	late, cancel := context.WithCancel(context.WithoutCancel(ctx))
	context.AfterFunc(ctx, func() { time.AfterFunc(endLimit, cancel) })
	return &writer{table: table, wake: func(int64) {}, known: func() int64 { return 0 }, queue: make(chan *write, batchWrites), ended: ctx.Done(), late: late}
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

// commit writes a batch. Where a database refuses a row, each of the batch is a transaction of its own. After any other failure,
// or after the end, what was not written yet is not.
func (w *writer) commit(batch []*write) {
	for parts := [][]*write{batch}; len(parts) > 0; {
		if w.isEnded() {
			fail(errClosed, parts...)
			return
		}
		part := wanted(parts[0])
		if parts = parts[1:]; len(part) == 0 {
			continue
		}
		revisions, err := w.try(part)
		known := outcomeOf(err)
		switch {
		case known == committed:
			for i, one := range part {
				one.answer <- written{revision: revisions[i]}
			}
			w.wake(slices.Max(revisions))
		case known == notCommitted && errors.Is(err, errTakenBack):
			parts = append([][]*write{part}, parts...) // wanted answers the write
		case known == notCommitted && refusedData(err) && len(part) > 1:
			parts = append(slices.Collect(slices.Chunk(part, 1)), parts...)
		case known == notCommitted && refusedData(err):
			fail(err, part)
		default:
			fail(err, append(parts, part)...)
			return
		}
	}
}

// unwanted returns why a write is not wanted any more, or nil.
func unwanted(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := fence.Check(ctx); err != nil {
		return status.Error(codes.Canceled, err.Error()) // it is no failure of the database
	}
	return nil
}

// timeLeft returns how long all writes of a batch may be committed, or errTakenBack.
func timeLeft(batch []*write) (least time.Duration, err error) {
	least = math.MaxInt64
	for _, one := range batch {
		left, err := fence.Left(one.ctx)
		if err != nil {
			return 0, errTakenBack
		}
		least = min(least, left)
	}
	return least, nil
}

// wanted answers the writes whose callers have left, and returns the others.
func wanted(batch []*write) []*write {
	still := batch[:0]
	for _, one := range batch {
		if err := unwanted(one.ctx); err != nil {
			one.answer <- written{err: err}
			continue
		}
		still = append(still, one)
	}
	return still
}

// fail answers all writes of some batches.
func fail(err error, batches ...[]*write) {
	for _, batch := range batches {
		for _, one := range batch {
			one.answer <- written{err: err}
		}
	}
}

func (w *writer) isEnded() bool {
	select {
	case <-w.ended:
		return true
	default:
		return false
	}
}

// try writes a batch, again if it was ended for the sake of another transaction, as compactions are, and after the table was mended.
func (w *writer) try(batch []*write) (revisions []int64, err error) {
	ctx, cancel := context.WithTimeout(w.late, connectLimit+writeLimit)
	defer cancel()
	for range endedTries {
		revisions, err = w.table.insert(ctx, batch, w.known())
		if errors.Is(err, errBehind) {
			if err := w.mend(ctx); err != nil {
				return nil, tagged{err, errUnsent}
			}
		} else if !conflicts(err) {
			break
		}
	}
	return revisions, err
}

// connected is the connection of a table, which may have to be opened.
func connected(ctx context.Context, db *sql.DB) (*sql.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, tagged{err, errUnsent}
	}
	return conn, nil
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
		return written{err: one.ctx.Err()}
	case <-w.ended:
		return written{err: errClosed}
	}
}
