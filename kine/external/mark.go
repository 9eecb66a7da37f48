package external

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
)

// A program that writes without Karve's lock can commit a revision after a later one, which lists and watches then lack. So the
// column for leases has another name in Karve's tables. kine names that column when it reads keys and when it
// writes, so k3s and earlier Karves fail at their start.
const (
	leaseOfKine = "lease"
	leaseColumn = "karve_lease"
)

// lookSQL fails if the table is not Karve's, and reads no row.
const lookSQL = "SELECT name, " + leaseColumn + " FROM kine WHERE id = 0"

// errForeign is the error for a table that this Karve has not made.
var errForeign = errors.New("its table kine is not Karve's: k3s, another kine or an earlier Karve has made it. Name another database, stop that program, and copy the cluster with karve datastore migrate")

// ensureTable makes the table, or refuses one that Karve has not made. It changes no table: to rename
// its column ends what uses it.
func (e *Database) ensureTable(ctx context.Context, db *sql.DB) error {
	marked, exact, err := e.kind.look(ctx, db)
	switch {
	case isMissing(err): // if another server makes it first, Open tries again
		_, err := db.ExecContext(ctx, e.kind.create)
		return inStatement(e.kind.create, err)
	case err == nil && !(marked && exact):
		return refusal(errForeign)
	}
	return err
}

// look tells whether the table has the mark, and whether it tells apart all names.
func (k *driver) look(ctx context.Context, db *sql.DB) (marked, exact bool, err error) {
	rows, err := db.QueryContext(ctx, lookSQL)
	if code(err) == "42703" || number(err) == 1054 { // undefined_column, ER_BAD_FIELD_ERROR
		return false, false, nil
	}
	if err != nil {
		return false, false, inStatement(lookSQL, err)
	}
	defer rows.Close()
	columns, err := rows.ColumnTypes()
	if err != nil {
		return false, false, err
	}
	rows.Next()
	return true, columns[0].DatabaseTypeName() == k.names, rows.Err()
}

// inStatement is the error of a statement, which it names if the database has answered.
func inStatement(statement string, err error) error {
	if !isAnswer(err) {
		return err
	}
	statement, _, _ = strings.Cut(statement, " (")
	return fmt.Errorf("%s: %w", statement, err)
}
