package external

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"

	"github.com/karve-k8s/karve/datastore/backup"
)

// errStale is the error of a read of a database that lacks what the writer's has.
var errStale = errors.New("a connection is to a database that lacks the newest writes: is it a replica?")

// mend makes a table that lacks what this server knows go on above it, as the statements of docs/datastore.md do. What is lost cannot be
// brought back, so all watches end, and no revision is used twice. One server does it, under the lock for writes: the others find the compaction. It
// asks the writer's database; if that lacks nothing, the error is errStale.
func (b *Backend) mend(ctx context.Context) error {
	var told error
	var to int64
	if err := b.locked(ctx, func(tx *sql.Tx) (err error) {
		told, to, err = b.goOn(ctx, tx)
		return err
	}); err != nil {
		return err
	}
	b.advance(to)
	if told != nil && b.wentBack != nil {
		b.wentBack(told)
	}
	return nil
}

// goOn does what mend does, in its transaction. It returns what the log is to say, and the newest revision.
func (b *Backend) goOn(ctx context.Context, tx *sql.Tx) (told error, to int64, err error) {
	at, known := b.tail.at.Load(), max(b.newest.Load(), b.tail.at.Load())
	rows, err := tx.QueryContext(ctx, tailQuery(b.table).Query, max(at-1, 0))
	if err != nil {
		return nil, 0, err
	}
	batch, compacted, err := tailRows(rows)
	switch {
	case err != nil:
		return nil, 0, err
	case at > 0 && compacted > at: // another server has done it
		return nil, batch.CurrentRev, nil
	case !b.tail.lacks(batch, compacted, known, true):
		return b.follow(ctx, tx, batch.CurrentRev)
	}
	to = backup.Above(max(known, batch.CurrentRev))
	statements := []string{
		"DELETE FROM kine WHERE name = '" + compactKey + "'",
		fmt.Sprintf("INSERT INTO kine (id, name, created, deleted, create_revision, prev_revision, %s) VALUES (%d, '%s', 1, 0, 0, %[2]d, 0)", leaseColumn, to, compactKey),
	}
	for _, statement := range statements {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return nil, 0, err
		}
	}
	if err := b.external.kind.goOnAfter(ctx, tx, to); err != nil {
		return nil, 0, err
	}
	lost := fmt.Sprintf("its newest revision is %d, and it had given out %d: %d revisions are lost", batch.CurrentRev, known, known-batch.CurrentRev)
	if batch.CurrentRev >= known {
		lost = fmt.Sprintf("revision %d is another one than it was, and those before it may be, too", at)
	}
	return fmt.Errorf("datastore %s went back in time: %s. It goes on at %d, and all clients list again", b.external, lost, to), to, nil
}

// follow makes the sequence of a table follow it, if it is behind.
func (b *Backend) follow(ctx context.Context, tx *sql.Tx, newest int64) (told error, to int64, err error) {
	if b.external.kind.follows == "" {
		return nil, 0, errStale
	}
	result, err := tx.ExecContext(ctx, b.external.kind.follows)
	if err != nil {
		return nil, 0, err
	}
	if n, err := result.RowsAffected(); err != nil || n == 0 {
		return nil, 0, errors.Join(errStale, err)
	}
	return fmt.Errorf("datastore %s: the sequence of the table kine was behind the table, as after a switch to a logical replica. It goes on at %d", b.external, newest), newest, nil
}

// checkRevision returns errStale if a read has begun at a known revision, and is of an earlier one.
func (b *Backend) checkRevision(known, read int64) error {
	if read >= known {
		return nil
	}
	b.watchdog.refresh() // the connection, once it is idle
	b.tail.doubt.Store(true)
	b.tail.wake(math.MaxInt64)
	return errStale
}
