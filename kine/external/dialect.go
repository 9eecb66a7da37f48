package external

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"unsafe"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
	"github.com/k3s-io/kine/pkg/query"
	"github.com/k3s-io/kine/pkg/server"
)

// kine takes any failure of an INSERT for a conflict, and reads the key (kine pkg/logstructured:
// Create, Update, Delete). On a full disk, an update is then a conflict with nobody, and a
// create of a key that does not exist a success. So the writer tells the caller what has become of
// the row.

// outcome is what has become of the last INSERT of a call.
type outcome struct {
	attempts int
	written
}

type outcomeKey struct{}

func withOutcome(ctx context.Context) (context.Context, *outcome) {
	o := &outcome{}
	return context.WithValue(ctx, outcomeKey{}, o), o
}

// failure is the error of a write. conflict tells whether a later read has found the key in
// another state than the write wants, which is the answer if the write has had no effect.
func (o *outcome) failure(conflict bool) error {
	if o.err == nil || errors.Is(o.err, server.ErrKeyExists) || conflict && !o.unknown {
		return nil // ErrKeyExists is of the unique index
	}
	return o.err
}

// result is the rows that kine has read for a list. Their error is known once kine has closed them.
type result struct{ rows *sql.Rows }

type resultKey struct{}

func (r *result) err() error {
	if r.rows == nil {
		return nil // a query that failed
	}
	return r.rows.Err()
}

func (r *result) of(rows *sql.Rows, err error) (*sql.Rows, error) {
	if r != nil {
		r.rows = rows
	}
	return rows, err
}

// dialect is a driver whose rows a writer inserts, whose lists have a result, and whose log can be followed on another
// connection when one is silent.
type dialect struct {
	server.Dialect
	writer   *writer
	watchdog *watchdog
	follow   *follow
}

// follow is the query of the loop that follows the log.
type follow struct {
	db  *sql.DB
	all *query.Named // selects the events after a revision
	end context.CancelFunc
}

// QueryAfter is called by the loop that follows the log only. Its rows are read when it is called again.
func (d dialect) QueryAfter(ctx context.Context, stmt *query.Stmt, revision int64) (*sql.Rows, error) {
	if d.follow.end != nil {
		d.follow.end()
	}
	rows, end, err := d.watchdog.first(ctx, func(ctx context.Context) (*sql.Rows, error) { return d.Dialect.QueryAfter(ctx, stmt, revision) })
	d.follow.end = end
	return rows, err
}

// PrepareAfter is called by the same loop, before the first QueryAfter, and after one that has failed. After a full batch, the loop
// tries again at once and for ever, also when the backend ends (kine pkg/logstructured/sqllog, poll).
func (d dialect) PrepareAfter(life context.Context, limit int64) (*query.Stmt, error) {
	stmt, err := d.prepareAfter(life, limit)
	if err != nil {
		if pause(life); life.Err() != nil {
			runtime.Goexit()
		}
	}
	return stmt, err
}

// prepareAfter is kine's, which does not close the connection of a statement that it cannot prepare, so that one after the other is
// lost to the pool (kine pkg/drivers/generic, prepare).
func (d dialect) prepareAfter(ctx context.Context, limit int64) (*query.Stmt, error) {
	ctx, cancel := context.WithTimeout(ctx, eventsLimit)
	defer cancel()
	ctx, _, end := d.watchdog.guard(ctx)
	defer end()
	named := d.follow.all.Appendf("LIMIT %d", limit)
	conn, err := d.follow.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	stmt, err := conn.PrepareContext(ctx, named.Query)
	if err != nil {
		conn.Close()
		return nil, err
	}
	return &query.Stmt{Named: named, Conn: conn, Stmt: stmt}, nil
}

// BeginTx begins a transaction for kine's compactor, or the one of kine's Append, which is one INSERT and
// the only one that asks for this isolation.
func (d dialect) BeginTx(ctx context.Context, opts *sql.TxOptions) (server.Transaction, error) {
	if opts == nil || opts.Isolation != sql.LevelReadCommitted {
		return d.Dialect.BeginTx(ctx, opts)
	}
	o, wanted := ctx.Value(outcomeKey{}).(*outcome)
	if !wanted {
		o = &outcome{}
	}
	return &transaction{writer: d.writer, outcome: o}, nil
}

func (d dialect) List(ctx context.Context, key, end string, limit, revision int64, includeDeleted, keysOnly bool) (*sql.Rows, error) {
	r, _ := ctx.Value(resultKey{}).(*result)
	return r.of(d.Dialect.List(ctx, key, end, limit, revision, includeDeleted, keysOnly))
}

func (d dialect) ListCurrent(ctx context.Context, key, end string, limit int64, includeDeleted, keysOnly bool) (*sql.Rows, error) {
	r, _ := ctx.Value(resultKey{}).(*result)
	return r.of(d.Dialect.ListCurrent(ctx, key, end, limit, includeDeleted, keysOnly))
}

// log is kine's log of a SQL database.
type log struct {
	*sqllog.SQLLog
	dialect *server.Dialect
	notify  chan int64 // wakes the loop that follows the log, if the revision is new to it
}

// logOf reaches into a SQL backend: kine's constructors do not take a dialect, and their fields are not
// exported. TestObserve fails when one of them is renamed.
func logOf(backend server.Backend) (log, error) {
	structured, ok := backend.(*logstructured.LogStructured)
	if !ok {
		return log{}, fmt.Errorf("kine's SQL backend is a %T", backend)
	}
	inner, ok := unexported[logstructured.Log](structured, "log")
	if !ok {
		return log{}, errors.New("kine's LogStructured has no field log")
	}
	table, ok := (*inner).(*sqllog.SQLLog)
	if !ok {
		return log{}, fmt.Errorf("kine's SQL log is a %T", *inner)
	}
	d, ok := unexported[server.Dialect](table, "d")
	if !ok {
		return log{}, errors.New("kine's SQLLog has no field d")
	}
	notify, ok := unexported[chan int64](table, "notify")
	if !ok {
		return log{}, errors.New("kine's SQLLog has no field notify")
	}
	return log{table, d, *notify}, nil
}

// observe puts a dialect before kine's.
func (l log) observe(g *generic.Generic, w *writer, d *watchdog) {
	*l.dialect = dialect{g, w, d, &follow{db: g.DB, all: g.AfterAllOldValSQL}}
}

// generic is kine's dialect, before observe.
func (l log) generic() (*generic.Generic, error) {
	g, ok := (*l.dialect).(*generic.Generic)
	if !ok {
		return nil, fmt.Errorf("kine's dialect is a %T", *l.dialect)
	}
	return g, nil
}

// wake tells the loop that follows the log of a revision.
func (l log) wake(revision int64) {
	select {
	case l.notify <- revision:
	default: // it is awake
	}
}

// unexported returns a field of type T of the struct that of points at.
func unexported[T any](of any, name string) (*T, bool) {
	field := reflect.ValueOf(of).Elem().FieldByName(name)
	if !field.IsValid() || field.Type() != reflect.TypeFor[T]() {
		return nil, false
	}
	return (*T)(unsafe.Pointer(field.UnsafeAddr())), true
}
