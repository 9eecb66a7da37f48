package external

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	kinetls "github.com/k3s-io/kine/pkg/tls"
)

// Table is kine's table in an SQL database, read or written as a whole, for the migration to another
// datastore. A [Backend] writes to a database as soon as it starts, and a Table only when it is committed. It has one connection.
type Table struct {
	external *Database
	db       *sql.DB
	tx       *sql.Tx
	release  func()
	numbered bool   // $1, not ?
	lease    string // the name of the column
	given    bool   // the database gives the revisions of rows

	newest []tableKey // as of the begin of the transaction
	last   int64      // revision

	rows    int   // waiting in args
	size    int   // bytes of args, about
	args    []any //
	written int64 // revision of the last row
}

// tableKey is the newest version of a key.
type tableKey struct {
	id   int64
	name string
	size int64
}

// Bounds of a statement.
const (
	tableRows  = 500
	tableBytes = 1 << 20 // of keys and values, unless one row has more
)

// errReplica is the error for a source that servers are not connected to.
var errReplica = errors.New("it is read-only, as a replica is: servers that use its primary could not be seen. Name the primary, and make it writable")

// ReadTable begins to read the table as it is now. It creates nothing. Close the Table.
func (e *Database) ReadTable(ctx context.Context, o Options) (_ *Table, err error) {
	t, err := e.openTable(ctx, o)
	if err != nil {
		return nil, e.clean(err)
	}
	defer func() {
		if err != nil {
			t.Close()
			err = e.clean(err)
		}
	}()
	if err := e.kind.primary(ctx, t.db); err != nil {
		return nil, err
	}
	if err := t.alone(ctx); err != nil {
		return nil, err
	}
	// The snapshot begins with the first statement.
	if t.tx, err = t.db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelRepeatableRead, ReadOnly: true}); err != nil {
		return nil, err
	}
	return t, t.readKeys(ctx)
}

// WriteTable creates the database and the table if they do not exist, and begins a transaction that fills the
// table with revisions above least. [Table.Commit] ends it; until then, nobody else sees a change.
// isOwn tells which keys a table may already have: they are removed. Nothing is written to a table with other
// keys, which is refused with a [NotEmptyError].
func (e *Database) WriteTable(ctx context.Context, o Options, least int64, isOwn func(key string) bool) (_ *Table, err error) {
	if err := e.look(ctx, o, isOwn); err != nil {
		return nil, e.clean(err)
	}
	b, err := e.Open(ctx, o)
	if err != nil {
		return nil, err
	}
	b.Close()
	t, err := e.openTable(ctx, o)
	if err != nil {
		return nil, e.clean(err)
	}
	defer func() {
		if err != nil {
			t.Close()
			err = e.clean(err)
		}
	}()
	if err := t.alone(ctx); err != nil {
		return nil, err
	}
	if t.tx, err = t.db.BeginTx(ctx, nil); err != nil {
		return nil, err
	}
	if err := e.kind.lock(ctx, t.tx); err != nil {
		return nil, err
	}
	if err := t.empty(ctx, isOwn); err != nil {
		return nil, err
	}
	if _, err := t.tx.ExecContext(ctx, `DELETE FROM kine`); err != nil {
		return nil, err
	}
	t.written = least
	return t, t.put(ctx, compactKey, []byte{}, 0)
}

// look refuses a table with keys before Open changes anything. It may be the source.
func (e *Database) look(ctx context.Context, o Options, isOwn func(string) bool) error {
	t, err := e.openTable(ctx, o)
	if errors.Is(err, errNoTable) {
		return nil
	} else if err != nil {
		return err
	}
	defer t.Close()
	if t.tx, err = t.db.BeginTx(ctx, nil); err != nil {
		return err
	}
	return t.empty(ctx, isOwn)
}

// NotEmptyError is the error for a table that has the keys of a cluster.
type NotEmptyError struct {
	Where string
	Keys  int
}

func (e *NotEmptyError) Error() string {
	return fmt.Sprintf("%s is not empty: its table kine has %d keys", e.Where, e.Keys)
}

// empty refuses a table with keys that are not its own.
func (t *Table) empty(ctx context.Context, isOwn func(string) bool) error {
	if err := t.readKeys(ctx); err != nil {
		return err
	}
	foreign := 0
	for _, k := range t.newest {
		if !isOwn(k.name) {
			foreign++
		}
	}
	if foreign > 0 {
		return &NotEmptyError{t.external.String(), foreign}
	}
	return nil
}

// openTable connects to a database that exists.
func (e *Database) openTable(ctx context.Context, o Options) (_ *Table, err error) {
	limited, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	db, release, err := e.kind.connect(e.rest, kinetls.Config{CAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile})
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(1)
	t := &Table{external: e, db: db, release: release, numbered: e.kind.numbered}
	marked, _, err := e.kind.look(limited, db)
	if err != nil {
		t.Close()
		return nil, explained(err)
	}
	if t.lease = leaseOfKine; marked {
		t.lease = leaseColumn
	}
	return t, nil
}

// aloneLimit is how long the database may need to end the connections of a server that has stopped.
const aloneLimit = 5 * time.Second

// alone waits until there are no other connections to the database. A server always has one.
func (t *Table) alone(ctx context.Context) error {
	for deadline := time.Now().Add(aloneLimit); ; {
		var others int
		if err := t.db.QueryRowContext(ctx, t.external.kind.others).Scan(&others); err != nil || others == 0 {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: other programs have %d connections to it: stop all servers that use it, and every psql or mysql there", t.external, others)
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// readKeys reads which keys there are, and the newest revision.
func (t *Table) readKeys(ctx context.Context) error {
	t.newest, t.last = nil, 0
	var last sql.NullInt64
	if err := t.tx.QueryRowContext(ctx, `SELECT MAX(id) FROM kine`).Scan(&last); err != nil {
		return explained(err)
	}
	t.last = last.Int64
	rows, err := t.tx.QueryContext(ctx, `SELECT k.id, k.name, COALESCE(OCTET_LENGTH(k.value), 0) FROM kine AS k
		INNER JOIN (SELECT MAX(id) AS id FROM kine GROUP BY name) AS newest ON newest.id = k.id
		WHERE k.deleted = 0 ORDER BY k.id`)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var k tableKey
		if err := rows.Scan(&k.id, &k.name, &k.size); err != nil {
			return err
		}
		t.newest = append(t.newest, k)
	}
	return rows.Err()
}

// Revision is the newest revision of the table.
func (t *Table) Revision() int64 { return t.last }

// EachKey calls do with every key and the size of its value.
func (t *Table) EachKey(do func(key string, size int64)) {
	for _, k := range t.newest {
		do(k.name, k.size)
	}
}

// Each calls do with every key, its value and its TTL in seconds (0: none), in the order in which they were
// written. A TTL of a table is that of one key.
func (t *Table) Each(ctx context.Context, do func(key string, value []byte, ttl int64) error) error {
	for next := 0; next < len(t.newest); {
		begin, size := next, int64(0)
		var ids []string
		for ; next < len(t.newest) && len(ids) < tableRows && (size == 0 || size+t.newest[next].size < tableBytes); next++ {
			ids, size = append(ids, fmt.Sprint(t.newest[next].id)), size+t.newest[next].size
		}
		if err := t.page(ctx, t.newest[begin:next], strings.Join(ids, ","), do); err != nil {
			return err
		}
	}
	return nil
}

// page reads the values of keys with these ids, which are numbers.
func (t *Table) page(ctx context.Context, keys []tableKey, ids string, do func(string, []byte, int64) error) error {
	rows, err := t.tx.QueryContext(ctx, `SELECT id, COALESCE(`+t.lease+`, 0), value FROM kine WHERE id IN (`+ids+`) ORDER BY id`)
	if err != nil {
		return t.external.clean(err)
	}
	defer rows.Close()
	read := 0
	for ; rows.Next(); read++ {
		var id, ttl int64
		var value []byte
		if err := rows.Scan(&id, &ttl, &value); err != nil {
			return t.external.clean(err)
		}
		if read == len(keys) || keys[read].id != id {
			return fmt.Errorf("%s: row %d of the table kine is not the expected one", t.external, id)
		}
		if err := do(keys[read].name, value, ttl); err != nil {
			return err
		}
	}
	if err := rows.Err(); err != nil {
		return t.external.clean(err)
	}
	if read < len(keys) {
		return fmt.Errorf("%s: row %d of the table kine is gone", t.external, keys[read].id)
	}
	return nil
}

// Changed ends the transaction of a reader and returns a key that has been written since it began, or
// nothing. A key that has expired is no change.
func (t *Table) Changed(ctx context.Context) (key string, err error) {
	t.tx.Rollback() // it has only read
	query := `SELECT name FROM kine WHERE id > ` + fmt.Sprint(t.last) + ` AND deleted = 0 ORDER BY id LIMIT 1`
	err = t.db.QueryRowContext(ctx, query).Scan(&key)
	if errors.Is(err, sql.ErrNoRows) {
		return "", nil
	}
	return key, t.external.clean(err)
}

// Put adds a key that is not there, at a revision of its own.
func (t *Table) Put(ctx context.Context, key string, value []byte, ttl int64) error {
	return t.external.clean(t.put(ctx, key, value, ttl))
}

func (t *Table) put(ctx context.Context, key string, value []byte, ttl int64) error {
	size := len(key) + len(value)
	if t.rows > 0 && (t.rows == tableRows || t.size+size > tableBytes) {
		if err := t.flush(ctx); err != nil {
			return err
		}
	}
	if value == nil {
		value = []byte{}
	}
	if !t.given {
		t.written++
		t.args = append(t.args, t.written)
	}
	t.args = append(t.args, key, min(ttl, math.MaxInt32), value)
	t.rows, t.size = t.rows+1, t.size+size
	return nil
}

// flush inserts rows as kine does for keys that are created.
func (t *Table) flush(ctx context.Context) error {
	if t.rows == 0 {
		return nil
	}
	var text strings.Builder
	text.WriteString(`INSERT INTO kine(`)
	if !t.given {
		text.WriteString("id, ")
	}
	text.WriteString(`name, created, deleted, create_revision, prev_revision, ` + t.lease + `, value) VALUES `)
	n := 0
	parameter := func() string {
		if n++; t.numbered {
			return fmt.Sprint("$", n)
		}
		return "?"
	}
	for i := range t.rows {
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString("(")
		if !t.given {
			text.WriteString(parameter() + ", ")
		}
		fmt.Fprintf(&text, "%s, 1, 0, 0, 0, %s, %s)", parameter(), parameter(), parameter())
	}
	_, err := t.tx.ExecContext(ctx, text.String(), t.args...)
	t.rows, t.size, t.args = 0, 0, t.args[:0]
	return explained(err)
}

// Reread reads what has been put, so that Each returns it.
func (t *Table) Reread(ctx context.Context) error {
	err := t.flush(ctx)
	if err == nil {
		err = t.readKeys(ctx)
	}
	return t.external.clean(err)
}

// Commit makes what has been put visible, all at once. Everything before is compacted, so that no client
// continues from an older revision. It returns the revision. After [ErrUncertain], all of it may be visible.
func (t *Table) Commit(ctx context.Context) (revision int64, err error) {
	if err := t.commit(ctx); err != nil {
		return 0, t.external.clean(err)
	}
	return t.written, nil
}

func (t *Table) commit(ctx context.Context) error {
	if err := t.flush(ctx); err != nil {
		return err
	}
	last := fmt.Sprint(t.written)
	if _, err := t.tx.ExecContext(ctx, `UPDATE kine SET prev_revision = `+last+` WHERE name = '`+compactKey+`'`); err != nil {
		return err
	}
	if err := t.external.kind.goOnAfter(ctx, t.tx, t.written); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := t.tx.Commit()
	if err == nil || refusedStatement(err) {
		return err
	}
	return tagged{err, ErrUncertain} // pgx also calls a connection closed that ended while it waited for the answer
}

// Close ends the transaction, unless it has been committed, and the connection.
func (t *Table) Close() error {
	if t.tx != nil {
		t.tx.Rollback() // fails after a commit
	}
	err := t.db.Close()
	t.release()
	return t.external.clean(err)
}
