package external

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"
	"github.com/k3s-io/kine/pkg/query"
)

// The lock that a transaction with new rows holds is of the database's name. GET_LOCK answers 0 when the lock was not
// free in time, and NULL when the wait was interrupted. INSERTs look at the answer, so that they do not need a round trip of their own.
const (
	mysqlLock  = "SHA1(CONCAT('kine ', DATABASE()))"
	mysqlTake  = "SET @karve_lock = GET_LOCK(" + mysqlLock + ", %d)"
	mysqlHas   = "SELECT COALESCE(@karve_lock, 0)"
	mysqlBegin = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED; START TRANSACTION; " + mysqlTake
	mysqlEnd   = "; DO RELEASE_LOCK(" + mysqlLock + ")"
	// mysqlIdle is after how many seconds the database takes the lock from a server that is gone.
	mysqlIdle = 10
)

// mysqlTable is the table in MySQL or MariaDB.
type mysqlTable struct {
	db        *sql.DB // of one connection
	line      *line
	connector sqldriver.Connector // of other connections
	wait      int                 // seconds for the lock
}

func openMySQLTable(ctx context.Context, dsn string) (inserter, error) {
	config, err := mysql.ParseDSN(dsn)
	if err != nil {
		return nil, err
	}
	config.MultiStatements, config.InterpolateParams = true, true // a transaction is two round trips
	if config.Params == nil {
		config.Params = map[string]string{}
	}
	config.Params["wait_timeout"] = fmt.Sprint(mysqlIdle)
	connector, err := mysql.NewConnector(config)
	if err != nil {
		return nil, err
	}
	writes, line := config.Clone(), &line{}
	writes.DialFunc = line.dial(new(net.Dialer).DialContext)
	writer, err := mysql.NewConnector(writes)
	if err != nil {
		return nil, err
	}
	db := sql.OpenDB(writer)
	db.SetMaxOpenConns(1)
	db.SetConnMaxIdleTime(mysqlIdle * time.Second / 2)
	ctx, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	if err := tryMySQLLock(ctx, db); err != nil {
		db.Close()
		return nil, err
	}
	return &mysqlTable{db, line, connector, int(lockLimit / time.Second)}, nil
}

// tryMySQLLock refuses a database that has no named locks. Whether another server holds the lock does not matter.
func tryMySQLLock(ctx context.Context, db *sql.DB) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close()
	var got sql.NullInt64
	if err = conn.QueryRowContext(ctx, "SELECT GET_LOCK("+mysqlLock+", 0)").Scan(&got); err != nil {
		return noLock(err)
	}
	_, err = conn.ExecContext(ctx, strings.TrimPrefix(mysqlEnd, "; "))
	return err
}

// noLock explains the error of GET_LOCK.
func noLock(err error) error {
	switch number(err) {
	case 1105, 1235: // Percona XtraDB Cluster; ER_NOT_SUPPORTED_YET
		return refusal(fmt.Errorf("the database does not allow GET_LOCK, without which lists and watches miss writes of other servers: "+
			"on Percona XtraDB Cluster, set pxc_strict_mode=PERMISSIVE; otherwise use a release that has GET_LOCK, or another database: %w", err))
	}
	return err
}

func (t *mysqlTable) close() { t.db.Close() }

func (t *mysqlTable) primary() *sql.DB { return t.db }

func (t *mysqlTable) ping(ctx context.Context) error {
	conn, err := t.connector.Connect(ctx)
	if err != nil {
		return err
	}
	return conn.Close()
}

// kine's INSERT without common table expressions, which take more than half of its time. What is created
// has no row before it.
const (
	mysqlInsert = "INSERT INTO kine(name, created, deleted, create_revision, prev_revision, " + leaseColumn + ", value, old_value) "
	mysqlWhere  = " FROM DUAL WHERE @karve_lock = 1 AND COALESCE((SELECT MAX(id) FROM kine WHERE name = ?), 0) = ?"
	mysqlCreate = mysqlInsert + "SELECT ?, 1, 0, 0, ?, ?, ?, NULL" + mysqlWhere
	mysqlChange = mysqlInsert + `SELECT ?, 0, ?, COALESCE((SELECT COALESCE(NULLIF(create_revision, 0), id) FROM kine WHERE id = ? AND deleted = 0), 0),
		?, ?, ?, (SELECT value FROM kine WHERE id = ? AND deleted = 0)` + mysqlWhere
)

// mysqlInserts is the name of a transaction in kine's metrics.
var mysqlInserts = &query.Named{Name: "Insert", Query: mysqlInsert + "…"}

func mysqlStatement(w *write) (string, []any) {
	if w.created {
		return mysqlCreate, []any{w.key, w.previous, w.ttl, w.value, w.key, w.previous}
	}
	return mysqlChange, []any{w.key, columnOf(w.deleted), w.previous, w.previous, w.ttl, w.value, w.previous, w.key, w.previous}
}

// insert sends everything up to COMMIT at once, and then COMMIT: a failure before is never unknown. If no INSERT had a row, it asks whether it
// has the lock.
func (t *mysqlTable) insert(ctx context.Context, batch []*write, known int64) (revisions []int64, err error) {
	defer func(began time.Time) {
		observe(began, err, mysqlInserts.Fill(nil))
	}(time.Now())
	conn, err := connected(ctx, t.db)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	left, err := timeLeft(batch)
	if err != nil {
		return nil, err
	}
	ctx, ended := t.line.limited(ctx, min(left, writeLimit))
	defer func() {
		broken := false
		if err != nil {
			_, failed := conn.ExecContext(ctx, "ROLLBACK"+mysqlEnd)
			broken = failed != nil
		}
		cut := ended()
		if cut != nil {
			err = afterCut(err, cut, left < writeLimit)
		}
		if cut != nil || broken {
			conn.Raw(func(any) error { return sqldriver.ErrBadConn })
		}
	}()
	if revisions, err = t.send(ctx, conn, batch); err != nil {
		return nil, tagged{err, errUnsent}
	}
	if _, err := timeLeft(batch); err != nil { // it may have waited for the lock
		return nil, err
	}
	if slices.ContainsFunc(revisions, func(given int64) bool { return given > 0 && given <= known }) {
		return nil, errBehind
	}
	if _, err := conn.ExecContext(ctx, "COMMIT"+mysqlEnd); err != nil {
		return nil, tagged{err, ErrUncertain} // RELEASE_LOCK may have failed, after COMMIT
	}
	return revisions, nil
}

// send sends what comes before COMMIT.
func (t *mysqlTable) send(ctx context.Context, conn *sql.Conn, batch []*write) (revisions []int64, err error) {
	const first = 3 // statements of mysqlBegin
	statements, arguments := []string{fmt.Sprintf(mysqlBegin, t.wait)}, []any(nil)
	for _, one := range batch {
		statement, values := mysqlStatement(one)
		statements, arguments = append(statements, statement), append(arguments, values...)
	}
	values := make([]sqldriver.NamedValue, len(arguments))
	for i, value := range arguments {
		values[i] = sqldriver.NamedValue{Ordinal: i + 1, Value: value}
	}
	err = conn.Raw(func(raw any) error {
		result, err := raw.(sqldriver.ExecerContext).ExecContext(ctx, strings.Join(statements, "; "), values)
		if err != nil {
			return err
		}
		all := result.(mysql.Result)
		rows, ids := all.AllRowsAffected(), all.AllLastInsertIds()
		if len(rows) != first+len(batch) {
			return fmt.Errorf("%d results of %d statements", len(rows), first+len(batch))
		}
		revisions = make([]int64, len(batch))
		for i := range batch {
			if rows[first+i] > 0 {
				revisions[i] = ids[first+i]
			}
		}
		return nil
	})
	if err != nil || slices.Max(revisions) > 0 {
		return revisions, err
	}
	return revisions, mysqlLocked(conn.QueryRowContext(ctx, mysqlHas))
}

// mysqlLocked returns errLocked if the answer is that there is no lock.
func mysqlLocked(answer *sql.Row) error {
	var has bool
	if err := answer.Scan(&has); err != nil {
		return err
	}
	if !has {
		return errLocked
	}
	return nil
}
