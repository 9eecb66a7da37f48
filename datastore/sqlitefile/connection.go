package sqlitefile

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"path/filepath"

	"modernc.org/sqlite"
)

// Connection is one SQLite connection with its prepared statements. One goroutine at a time may
// use it.
type Connection struct {
	driver.Conn
	path  string
	stmts map[string]driver.Stmt
}

// The sync of a commit does not write the time of the WAL's last change, which would take a transaction of the file
// system's journal. On macOS this returns an error, as SQLite has another way there.
func init() { _, _ = sqlite.Fdatasync(true) }

// Connect opens the database at path. query has the URI parameters of SQLite and of the driver
// (_pragma).
func Connect(path string, query url.Values) (*Connection, error) {
	full, err := filepath.Abs(path) // SQLite would take a relative one for a host
	if err != nil {
		return nil, err
	}
	connector, err := sqlite.NewConnector(dataSource(full, query))
	if err != nil {
		return nil, err
	}
	c, err := connector.Connect(context.Background())
	if err != nil {
		return nil, err
	}
	return &Connection{Conn: c, path: path, stmts: map[string]driver.Stmt{}}, nil
}

// dataSource returns the URI of an absolute path.
func dataSource(path string, query url.Values) string {
	// It has an effect on macOS only, where fsync(2) leaves data in the disk's cache: SQLite
	// then uses F_FULLFSYNC (https://sqlite.org/pragma.html#pragma_fullfsync).
	all := url.Values{}
	maps.Copy(all, query)
	all["_pragma"] = append([]string{"fullfsync(1)"}, query["_pragma"]...)
	u := url.URL{Scheme: "file", Path: path, RawQuery: all.Encode()}
	return u.String()
}

func (c *Connection) stmt(query string) (driver.Stmt, error) {
	if s := c.stmts[query]; s != nil {
		return s, nil
	}
	s, err := c.Prepare(query)
	if err != nil {
		return nil, err
	}
	c.stmts[query] = s
	return s, nil
}

func named(args []driver.Value) []driver.NamedValue {
	out := make([]driver.NamedValue, len(args))
	for i, a := range args {
		out[i] = driver.NamedValue{Ordinal: i + 1, Value: a}
	}
	return out
}

// Exec runs a statement that returns no rows.
func (c *Connection) Exec(query string, args ...driver.Value) error {
	s, err := c.stmt(query)
	if err != nil {
		return err
	}
	_, err = s.(driver.StmtExecContext).ExecContext(context.Background(), named(args))
	return c.withCause(err)
}

// ExecContext is [Connection.Exec] for a statement that takes long. The driver interrupts it
// when ctx ends; the error is then ctx's.
func (c *Connection) ExecContext(ctx context.Context, path, query string, args ...driver.Value) error {
	s, err := c.stmt(query)
	if err == nil {
		_, err = s.(driver.StmtExecContext).ExecContext(ctx, named(args))
	}
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return Explain(path, err)
	}
	return nil
}

// Query calls row for every row of the result. row may keep the values.
func (c *Connection) Query(query string, row func([]driver.Value) error, args ...driver.Value) error {
	return c.query(context.Background(), query, row, args...)
}

// QuickCheck runs SQLite's own check of the structure of the file, and returns the problems that
// it finds, at most that many. When ctx ends, the driver interrupts the check; the error is then
// ctx's.
func (c *Connection) QuickCheck(ctx context.Context, most int) (problems []string, err error) {
	err = c.query(ctx, fmt.Sprintf(`PRAGMA quick_check(%d)`, most), func(row []driver.Value) error {
		if text, _ := row[0].(string); text != "ok" {
			problems = append(problems, text)
		}
		return nil
	})
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	return problems, err
}

// query is Query. The driver interrupts it when ctx ends before the first row.
func (c *Connection) query(ctx context.Context, query string, row func([]driver.Value) error, args ...driver.Value) (err error) {
	s, err := c.stmt(query)
	if err != nil {
		return err
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(ctx, named(args))
	if err != nil {
		return c.withCause(err)
	}
	defer func() {
		if e := rows.Close(); err == nil {
			err = e
		}
	}()
	values := make([]driver.Value, len(rows.Columns()))
	for {
		if err := rows.Next(values); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return c.withCause(err)
		}
		if err := row(values); err != nil {
			return err
		}
	}
}

// Number returns the integer that a query selects, or 0 for NULL or no row.
func (c *Connection) Number(query string, args ...driver.Value) (n int64, err error) {
	err = c.Query(query, func(v []driver.Value) error {
		n, _ = v[0].(int64)
		return nil
	}, args...)
	return n, err
}

// Close closes the connection and its statements.
func (c *Connection) Close() error {
	for _, s := range c.stmts {
		s.Close()
	}
	return c.Conn.Close()
}

// PersistWAL tells SQLite whether the WAL stays when the last connection closes.
func (c *Connection) PersistWAL(keep bool) error {
	mode := 0
	if keep {
		mode = 1
	}
	_, err := c.Conn.(sqlite.FileControl).FileControlPersistWAL("main", mode)
	return err
}

// insert writes a row of the log table.
func (c *Connection) insert(r *Row, value []byte) error {
	var stored driver.Value
	if !r.Tombstone() {
		if value == nil {
			value = []byte{}
		}
		stored = value
	}
	return c.Exec(insertSQL, r.ID, []byte(r.Key), r.Flags(), r.Create, r.Version, r.Lease, r.Checksum(value), stored)
}

// exclusiveVFS is the VFS of SQLite that locks the whole database as long as this process has a
// connection open, and keeps the WAL-index in memory that the connections share
// (https://sqlite.org/vfs.html#standard_unix_vfses). Meanwhile no other program can read, lock or
// checkpoint the database. There is no file -shm: if the disk had no space for a page of such a mapped
// file, a store into it would kill the process.
//
// It works only if the first connection of this process uses it. Its lock is gone when this process
// closes any other descriptor of the file, so only SQLite may open the database of a running engine.
const exclusiveVFS = "unix-excl"

// lockless is the VFS of SQLite that takes no locks. With PRAGMA locking_mode=EXCLUSIVE, a connection
// then makes no file -shm either.
const lockless = "unix-none"
