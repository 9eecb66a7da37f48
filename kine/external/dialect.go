package external

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"reflect"
	"unsafe"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
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

// writing is a dialect whose rows a writer inserts, and whose lists have a result.
type writing struct {
	*generic.Generic
	writer *writer
}

// BeginTx begins the transaction of kine's Append, which is one INSERT.
func (d writing) BeginTx(ctx context.Context, _ *sql.TxOptions) (server.Transaction, error) {
	o, wanted := ctx.Value(outcomeKey{}).(*outcome)
	if !wanted {
		o = &outcome{}
	}
	return &transaction{writer: d.writer, outcome: o}, nil
}

func (d writing) List(ctx context.Context, key, end string, limit, revision int64, includeDeleted, keysOnly bool) (*sql.Rows, error) {
	r, _ := ctx.Value(resultKey{}).(*result)
	return r.of(d.Generic.List(ctx, key, end, limit, revision, includeDeleted, keysOnly))
}

func (d writing) ListCurrent(ctx context.Context, key, end string, limit int64, includeDeleted, keysOnly bool) (*sql.Rows, error) {
	r, _ := ctx.Value(resultKey{}).(*result)
	return r.of(d.Generic.ListCurrent(ctx, key, end, limit, includeDeleted, keysOnly))
}

// dialectOf reaches into a backend of kine's: its constructors do not take a dialect, and their fields are not
// exported. TestDialectOf fails when one of them is renamed.
func dialectOf(backend server.Backend) (*server.Dialect, error) {
	structured, ok := backend.(*logstructured.LogStructured)
	if !ok {
		return nil, fmt.Errorf("kine's backend is a %T", backend)
	}
	inner, ok := unexported[logstructured.Log](structured, "log")
	if !ok {
		return nil, errors.New("kine's LogStructured has no field log")
	}
	table, ok := (*inner).(*sqllog.SQLLog)
	if !ok {
		return nil, fmt.Errorf("kine's log is a %T", *inner)
	}
	d, ok := unexported[server.Dialect](table, "d")
	if !ok {
		return nil, errors.New("kine's SQLLog has no field d")
	}
	return d, nil
}

// unexported returns a field of type T of the struct that of points at.
func unexported[T any](of any, name string) (*T, bool) {
	field := reflect.ValueOf(of).Elem().FieldByName(name)
	if !field.IsValid() || field.Type() != reflect.TypeFor[T]() {
		return nil, false
	}
	return (*T)(unsafe.Pointer(field.UnsafeAddr())), true
}
