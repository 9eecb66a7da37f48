package external

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
	"github.com/k3s-io/kine/pkg/server"
)

// kine takes any failure of an INSERT for a conflict, and reads the key (kine pkg/logstructured:
// Create, Update, Delete). On a full disk, an update is then a conflict with nobody, and a
// create of a key that does not exist a success. So the transaction tells the caller of a write
// what has become of it.

// outcome is what has become of the last INSERT of a call.
type outcome struct {
	attempts  int
	revision  int64 // 0: no row
	err       error
	committed bool // err is that of COMMIT, so the row may be there
}

type outcomeKey struct{}

func withOutcome(ctx context.Context) (context.Context, *outcome) {
	o := &outcome{}
	return context.WithValue(ctx, outcomeKey{}, o), o
}

// failure is the error of a write. conflict tells whether a later read has found the key in
// another state than the write wants, which is the answer if the write has had no effect.
func (o *outcome) failure(conflict bool) error {
	if o.err == nil || errors.Is(o.err, server.ErrKeyExists) || conflict && !o.committed {
		return nil // ErrKeyExists is of the unique index
	}
	return o.err
}

// result is the rows that kine has read for a list. Their error is known once kine has closed them.
type result struct{ rows *sql.Rows }

type resultKey struct{}

func (r *result) err() error {
	if r.rows == nil {
		return nil // NATS, or a query that failed
	}
	return r.rows.Err()
}

func (r *result) of(rows *sql.Rows, err error) (*sql.Rows, error) {
	if r != nil {
		r.rows = rows
	}
	return rows, err
}

// dialect is a driver whose transactions have an outcome, and whose lists a result.
type dialect struct{ server.Dialect }

func (d dialect) BeginTx(ctx context.Context, opts *sql.TxOptions) (server.Transaction, error) {
	tx, err := d.Dialect.BeginTx(ctx, opts)
	o, wanted := ctx.Value(outcomeKey{}).(*outcome)
	if !wanted {
		return tx, err
	}
	*o = outcome{attempts: o.attempts + 1, err: err}
	if err != nil {
		return nil, err
	}
	return &transaction{Transaction: tx, outcome: o}, nil
}

func (d dialect) List(ctx context.Context, key, end string, limit, revision int64, includeDeleted, keysOnly bool) (*sql.Rows, error) {
	r, _ := ctx.Value(resultKey{}).(*result)
	return r.of(d.Dialect.List(ctx, key, end, limit, revision, includeDeleted, keysOnly))
}

func (d dialect) ListCurrent(ctx context.Context, key, end string, limit int64, includeDeleted, keysOnly bool) (*sql.Rows, error) {
	r, _ := ctx.Value(resultKey{}).(*result)
	return r.of(d.Dialect.ListCurrent(ctx, key, end, limit, includeDeleted, keysOnly))
}

type transaction struct {
	server.Transaction
	outcome  *outcome
	inserted int64
}

func (t *transaction) Insert(ctx context.Context, key string, created, deleted bool, previousRevision, ttl int64, value []byte) (id int64, err error) {
	t.inserted, err = t.Transaction.Insert(ctx, key, created, deleted, previousRevision, ttl, value)
	t.outcome.err = err
	return t.inserted, err
}

func (t *transaction) Commit() error {
	err := t.Transaction.Commit()
	if t.outcome.err, t.outcome.committed = err, true; err == nil {
		t.outcome.revision = t.inserted
	}
	return err
}

// observe puts a dialect before that of a SQL backend. kine's constructors do not take one, and
// their fields are not exported. TestObserve fails when one of them is renamed.
func observe(backend server.Backend) error {
	log, ok := backend.(*logstructured.LogStructured)
	if !ok {
		return fmt.Errorf("kine's SQL backend is a %T", backend)
	}
	inner, ok := unexported[logstructured.Log](log, "log")
	if !ok {
		return errors.New("kine's LogStructured has no field log")
	}
	table, ok := (*inner).(*sqllog.SQLLog)
	if !ok {
		return fmt.Errorf("kine's SQL log is a %T", *inner)
	}
	d, ok := unexported[server.Dialect](table, "d")
	if !ok {
		return errors.New("kine's SQLLog has no field d")
	}
	*d = dialect{*d}
	return nil
}

// unexported returns a field of type T of the struct that of points at.
func unexported[T any](of any, name string) (*T, bool) {
	field := reflect.ValueOf(of).Elem().FieldByName(name)
	if !field.IsValid() || field.Type() != reflect.TypeFor[T]() {
		return nil, false
	}
	return (*T)(unsafe.Pointer(field.UnsafeAddr())), true
}
