package external

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
)

// A program that writes without Karve's lock can commit a revision after a later one, which lists and watches then lack. So the
// column for leases has another name in Karve's tables. kine names that column when it reads keys and when it
// writes, so k3s and earlier Karves fail at their start, and at once if they run.
const (
	leaseOfKine = "lease"
	leaseColumn = "karve_lease"
)

// foreignSQL selects whether a table has the keys of a cluster that is not Karve's. Every Karve is in the fields' managers of
// the objects that it makes, and since v1.37 it writes a record. CONTAINS is the kind's.
const foreignSQL = `SELECT EXISTS (SELECT 1 FROM kine WHERE name LIKE '/%' AND name <> '/registry/health')
	AND NOT EXISTS (SELECT 1 FROM kine WHERE name = '/registry/karve/cluster' OR CONTAINS AND
		(name LIKE '/%/namespaces/kube-system' OR name LIKE '/%/configmaps/kube-system/extension-apiserver-authentication'))`

// errForeign is the error for a table that somebody else uses.
var errForeign = errors.New("its table kine is not Karve's: k3s or another kine has filled it. Name another database, stop that program, and copy the cluster with karve datastore migrate")

// own makes the table Karve's, if it has no cluster or an earlier Karve's. ALTER TABLE waits for all transactions that have
// used the table, so nothing that was written without the lock becomes visible after it.
func (k *driver) own(ctx context.Context, db *sql.DB) (err error) {
	own, err := isOwn(ctx, db)
	if own || err != nil {
		return err
	}
	var foreign bool
	if err := db.QueryRowContext(ctx, k.foreign).Scan(&foreign); err != nil {
		return err
	}
	if foreign {
		return refusal{errForeign}
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // it has less patience than others
	if _, err := conn.ExecContext(ctx, k.patience); err != nil {
		return err
	}
	if _, err = conn.ExecContext(ctx, k.rename); err == nil {
		return nil
	}
	if own, _ := isOwn(ctx, db); own { // another server was faster
		return nil
	}
	switch {
	case code(err) == "55P03" || number(err) == 1205: // lock_not_available, ER_LOCK_WAIT_TIMEOUT
		return fmt.Errorf("another program has had a transaction open for %v that has used the table kine; wait for its end, or end it: %w", lockLimit, err)
	case code(err) == "42501" || number(err) == 1142: // insufficient_privilege, ER_TABLEACCESS_DENIED_ERROR
		return refusal{fmt.Errorf("the table kine cannot be made Karve's: let its owner run %q, or be the user in the endpoint: %w", k.rename, err)}
	}
	return err
}

// isOwn tells whether the table is Karve's.
func isOwn(ctx context.Context, db *sql.DB) (bool, error) {
	rows, err := db.QueryContext(ctx, "SELECT "+leaseOfKine+" FROM kine WHERE id = 0")
	if err == nil {
		defer rows.Close()
		rows.Next()
		err = rows.Err()
	}
	if code(err) == "42703" || number(err) == 1054 { // undefined_column, ER_BAD_FIELD_ERROR
		return true, nil
	}
	return false, err
}
