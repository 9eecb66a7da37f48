package external

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
)

// A database that refuses connections is an error at once. One that is stopped (SIGSTOP), or whose packets are lost, is
// silent: without a bound, calls would wait as long as their callers do, and the loop that follows the table until TCP
// gives up after a quarter of an hour.
const (
	// silentAfter is how long a call waits before the database is asked on another connection whether it is there. A
	// call that only takes long goes on.
	silentAfter = 5 * time.Second
	// askLimit bounds that question.
	askLimit = 2 * time.Second
	// eventsLimit bounds the time until the first row of the log, which an index finds. A connection may be silent alone: a
	// firewall that starts again forgets those that it has let in.
	eventsLimit = 15 * time.Second
)

// A watchdog ends calls that a database does not answer.
type watchdog struct {
	life context.Context
	// question is answered by a database that works. It opens a connection of its own.
	question func(context.Context) error
	// lost is told of a database that does not answer.
	lost func(error)
	// refresh closes idle connections: nobody may be at their other end.
	refresh func()

	mu    sync.Mutex // held during a question
	asked time.Time  // the last one's end
	last  error
}

// ask returns an error if the database does not answer. Callers that ask at the same time share the answer.
func (w *watchdog) ask() error {
	began := time.Now()
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.asked.After(began) {
		return w.last
	}
	ctx, cancel := context.WithTimeout(w.life, askLimit)
	defer cancel()
	err := w.question(ctx)
	switch {
	case w.life.Err() != nil:
		return nil // the end has its own error
	case err == nil, answered(err):
		w.last = nil
	default:
		w.last = fmt.Errorf("%w: %w", errSilent, err)
	}
	w.asked = time.Now()
	return w.last
}

// answered tells whether an error is the database's own.
func answered(err error) bool {
	pg, my := (*pgconn.PgError)(nil), (*mysql.MySQLError)(nil)
	return errors.As(err, &pg) || errors.As(err, &my)
}

// guard is the context of a call, which ends when the database has been silent, or by end.
func (w *watchdog) guard(ctx context.Context) (_ context.Context, end context.CancelFunc) {
	limited, cancel := context.WithCancelCause(ctx)
	var check func()
	check = func() {
		if limited.Err() != nil {
			return
		}
		switch err := w.ask(); {
		case limited.Err() != nil:
		case err != nil:
			w.lost(err)
			cancel(err)
		default:
			time.AfterFunc(silentAfter, check) // after the end, it does nothing
		}
	}
	first := time.AfterFunc(silentAfter, check)
	return limited, func() {
		first.Stop()
		cancel(nil)
	}
}

// first guards a query for events, and bounds the time until its first row.
func (w *watchdog) first(ctx context.Context, query func(context.Context) (*sql.Rows, error)) (_ *sql.Rows, end context.CancelFunc, err error) {
	ctx, end = w.guard(ctx)
	late := time.AfterFunc(eventsLimit, func() {
		end()
		w.refresh() // the next query is not for another such connection
	})
	defer late.Stop()
	rows, err := query(ctx)
	return rows, end, err
}

// guardError is the error of a call with a guard's context: the guard's, if that has ended it.
func guardError(limited context.Context, err error) error {
	if cause := context.Cause(limited); err != nil && outcomeOf(cause) == silent {
		return cause
	}
	return err
}

// limit bounds a call of a driver that would wait for a lost connection as long as its caller does. While the database is
// away, the context has ended at its begin, unless the database answers again.
func (b *Backend) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if b.away.Load() {
		if err := b.watchdog.ask(); err != nil {
			limited, end := context.WithCancelCause(ctx)
			end(err)
			return limited, func() {}
		}
		b.watchdog.refresh()
	}
	return b.watchdog.guard(ctx)
}
