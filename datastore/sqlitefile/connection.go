package sqlitefile

import (
	"context"
	"database/sql/driver"
	"errors"
	"io"
	"net/url"
	"path/filepath"

	"modernc.org/sqlite"
)

// connection is one SQLite connection with its prepared statements.
type Connection struct {
	driver.Conn
	path  string
	stmts map[string]driver.Stmt
}

// connect opens the database at path. The query has SQLite's URI parameters and the
// driver's (_pragma).
func Connect(path string, query url.Values) (*Connection, error) {
	full, err := filepath.Abs(path) // a relative one would be taken for a host
	if err != nil {
		return nil, err
	}
	connector, err := sqlite.NewConnector(dataSource(filepath.ToSlash(full), query))
	if err != nil {
		return nil, err
	}
	c, err := connector.Connect(context.Background())
	if err != nil {
		return nil, err
	}
	return &Connection{Conn: c, path: path, stmts: map[string]driver.Stmt{}}, nil
}

// dataSource names an absolute path, with slashes, for SQLite.
func dataSource(path string, query url.Values) string {
	if path[0] != '/' {
		path = "/" + path // C:/… of Windows; SQLite takes the slash off again
	}
	// On macOS alone, where fsync(2) leaves data in the disk's cache: SQLite asks for
	// F_FULLFSYNC then (https://sqlite.org/pragma.html#pragma_fullfsync).
	all := url.Values{"_pragma": append([]string{"fullfsync(1)"}, query["_pragma"]...)}
	for name, values := range query {
		if name != "_pragma" {
			all[name] = values
		}
	}
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

func (c *Connection) Exec(query string, args ...driver.Value) error {
	s, err := c.stmt(query)
	if err != nil {
		return err
	}
	_, err = s.(driver.StmtExecContext).ExecContext(context.Background(), named(args))
	return c.withCause(err)
}

// execContext is exec for a statement that takes long; the driver interrupts it
// when ctx ends.
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

// query calls row for every row of the answer; values are the row's own.
func (c *Connection) Query(query string, row func([]driver.Value) error, args ...driver.Value) (err error) {
	s, err := c.stmt(query)
	if err != nil {
		return err
	}
	rows, err := s.(driver.StmtQueryContext).QueryContext(context.Background(), named(args))
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

// number answers a query of one integer.
func (c *Connection) Number(query string, args ...driver.Value) (n int64, err error) {
	err = c.Query(query, func(v []driver.Value) error {
		n, _ = v[0].(int64)
		return nil
	}, args...)
	return n, err
}

func (c *Connection) Close() error {
	for _, s := range c.stmts {
		s.Close()
	}
	return c.Conn.Close()
}

// persistWAL tells SQLite whether its log is to stay when the last connection is closed.
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
