package datastore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
)

// disk is the log in its file: one writer connection, used by the committer
// only, and a few for reading values back.
//
// It works on driver connections, without database/sql: no pool, no
// cancellable context (the driver starts a goroutine per statement for one),
// statements prepared once.
type disk struct {
	path   string
	writer *connection

	vfs string // of the engine's connections; empty for SQLite's default

	// gate is held shared by readers while a statement of theirs is open, and
	// exclusively for commits that must not find any: see writeBack.
	gate    sync.RWMutex
	long    int              // long reads that are under way; guarded by gate
	readers chan *connection // those at rest; closed with the disk
	reading int              // how many there are

	wal     int64 // upper estimate of the log's bytes that are not copied back
	corner  bool  // the next commit has to find no reader, so that the log begins anew
	walFile *os.File

	longReads sync.WaitGroup
	closing   bool // guarded by gate: no long read begins
	closed    context.Context
	endReads  context.CancelFunc // of closed

	giveUp atomic.Bool // the engine is about to close: wait for no other program
	onWait func(error)

	copied    bool // another program had written the log back before this start
	sealing   bool // nobody else can checkpoint the log: the states below are kept
	sealed    bool // the newest commit says sealedState
	mustOpen  bool // the database itself may say sealedState: no commit before it says openState
	openState stopState
	sealState stopState

	// fail, if set, is asked before each step that a test wants to break.
	fail atomic.Pointer[func(step string) error]
}

// walTarget is where a checkpoint is due; walLimit is what the log never
// exceeds while transactions are smaller than their difference.
const (
	walTarget = 2 << 20
	walLimit  = 16 << 20
)

// connection is one SQLite connection with its prepared statements.
type connection struct {
	driver.Conn
	stmts map[string]driver.Stmt
}

func (d *disk) connect(query url.Values) (*connection, error) {
	path, err := filepath.Abs(d.path) // a relative one would be taken for a host
	if err != nil {
		return nil, err
	}
	if d.vfs != "" {
		query = maps.Clone(query)
		if query == nil {
			query = url.Values{}
		}
		query.Set("vfs", d.vfs)
	}
	connector, err := sqlite.NewConnector(dataSource(filepath.ToSlash(path), query))
	if err != nil {
		return nil, err
	}
	c, err := connector.Connect(context.Background())
	if err != nil {
		return nil, err
	}
	return &connection{c, map[string]driver.Stmt{}}, nil
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

// pragmas of a connection that takes part in the log.
func pragmas(mode Durability) url.Values {
	synchronous := "FULL"
	if mode == Relaxed {
		synchronous = "NORMAL"
	}
	return url.Values{"_pragma": {
		"busy_timeout(100)",
		"journal_mode(WAL)",
		"synchronous(" + synchronous + ")",
		"wal_autocheckpoint(0)",
		"cache_size(-4096)",
	}}
}

func (c *connection) stmt(query string) (driver.Stmt, error) {
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

func (c *connection) exec(query string, args ...driver.Value) error {
	s, err := c.stmt(query)
	if err != nil {
		return err
	}
	_, err = s.(driver.StmtExecContext).ExecContext(context.Background(), named(args))
	return c.withCause(err)
}

// query calls row for every row of the answer; values are the row's own.
func (c *connection) query(query string, row func([]driver.Value) error, args ...driver.Value) (err error) {
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
func (c *connection) number(query string, args ...driver.Value) (n int64, err error) {
	err = c.query(query, func(v []driver.Value) error {
		n, _ = v[0].(int64)
		return nil
	}, args...)
	return n, err
}

func (c *connection) close() error {
	for _, s := range c.stmts {
		s.Close()
	}
	return c.Conn.Close()
}

const (
	insertSQL  = `INSERT INTO log (id, key, flags, create_revision, version, lease, crc, value) VALUES (?,?,?,?,?,?,?,?)`
	metaSQL    = `INSERT INTO meta (name, value) VALUES (?,?) ON CONFLICT (name) DO UPDATE SET value = excluded.value`
	grantSQL   = `INSERT INTO lease (id, ttl) VALUES (?,?) ON CONFLICT (id) DO UPDATE SET ttl = excluded.ttl`
	revokeSQL  = `DELETE FROM lease WHERE id = ?`
	deleteSQL  = `DELETE FROM log WHERE id = ?`
	readSQL    = `SELECT crc, value FROM log WHERE id = ?`
	readersMax = 4
)

// transaction runs body, which changes at most that many pages, between BEGIN
// IMMEDIATE and COMMIT. When it fails with isFull the transaction is rolled back
// and nothing of it is there; after any other error of COMMIT its outcome is open.
//
// Unless the newest commit says "sealed", this one does.
func (d *disk) transaction(pages int64, body func(*connection) error) error {
	if d.corner || d.mustOpen {
		d.gate.Lock()
		defer d.gate.Unlock()
		if d.long == 0 {
			switch err := d.writeBackAlone(func() {}); {
			case err == nil:
				d.corner = false // the commit below begins the log anew
			case !isBusy(err):
				return err
			}
		}
		if d.mustOpen {
			return fmt.Errorf("%w: the log could not be copied back before", ErrNoSpace)
		}
	}
	if err := d.broken("begin"); err != nil {
		return err
	}
	if !d.sealing || d.sealed {
		return d.commitPages(pages, body)
	}
	err := d.commitPages(pages+metaPages, func(c *connection) error {
		if err := body(c); err != nil {
			return err
		}
		return c.setMetas([]meta{d.sealState.meta()})
	})
	d.sealed = err == nil
	return err
}

// commitPages is transaction without the state. While another program has locked the
// database nothing is written, so it tries again until the engine is about to close.
func (d *disk) commitPages(pages int64, body func(*connection) error) error {
	told := ""
	for {
		err := d.commitOnce(pages, body)
		if !isBusy(err) || d.giveUp.Load() {
			return err
		}
		if busy := busyWith(d.path); d.onWait != nil && busy.Error() != told {
			told = busy.Error()
			d.onWait(busy)
		}
		time.Sleep(busyRetry)
	}
}

func (d *disk) commitOnce(pages int64, body func(*connection) error) error {
	if err := d.writer.exec("BEGIN IMMEDIATE"); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	d.wal += pages * pageSize
	err := body(d.writer)
	if err == nil {
		err = d.broken("commit")
	}
	if err == nil {
		err = d.writer.exec("COMMIT")
	}
	if err == nil {
		err = d.broken("committed")
	}
	if err != nil {
		// SQLite may have rolled back by itself: then this fails and all is well.
		_ = d.writer.exec("ROLLBACK")
		return fmt.Errorf("commit: %w", err)
	}
	return nil
}

func (d *disk) broken(step string) error {
	if fail := d.fail.Load(); fail != nil {
		return (*fail)(step)
	}
	return nil
}

// pageSize is that of the database.
const pageSize = 4096

// metaPages is how many pages a transaction changes beside the rows it is about, on
// the safe side.
const metaPages = 5

// commit writes one batch.
func (d *disk) commit(b *batch) error {
	bytes := int64(metaPages+len(b.leases)) * pageSize
	for _, v := range b.rows {
		bytes += rowPages(v)
	}
	return d.transaction((bytes+pageSize-1)/pageSize, func(c *connection) error {
		for _, v := range b.rows {
			value := b.value(v)
			var stored driver.Value
			if !v.tombstone() {
				stored = value
			}
			if err := c.exec(insertSQL, v.id, []byte(v.key), v.flags(), v.create, v.version, v.lease, v.checksum(value), stored); err != nil {
				return err
			}
		}
		if err := c.setMetas(b.meta); err != nil {
			return err
		}
		for _, l := range b.leases {
			var err error
			if l.revoked {
				err = c.exec(revokeSQL, l.id)
			} else {
				err = c.exec(grantSQL, l.id, l.ttl)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// rowPages is how many bytes of log a row takes, on the safe side.
func rowPages(v *version) int64 {
	n := (int64(v.size) + int64(len(v.key)) + 100) * 6 / 5
	if n > 4000 {
		n = (n + 4*pageSize) &^ (pageSize - 1)
	}
	return n
}

// setMeta writes meta values in a transaction of their own.
func (d *disk) setMeta(ms ...meta) error {
	return d.transaction(metaPages, func(c *connection) error { return c.setMetas(ms) })
}

func (c *connection) setMetas(ms []meta) error {
	for _, m := range ms {
		if err := c.exec(metaSQL, m.name, m.value); err != nil {
			return err
		}
	}
	return nil
}

// deleteRows removes rows of the log, until the budget is used up, and says how many
// it did.
func (d *disk) deleteRows(ids []int64, budget time.Duration) (done int, err error) {
	ids = ids[:min(len(ids), sliceRows)]
	err = d.transaction(int64(len(ids))*2+metaPages, func(c *connection) error {
		begin := time.Now()
		done = 0
		for _, id := range ids {
			if err := c.exec(deleteSQL, id); err != nil {
				return err
			}
			done++
			if done%16 == 0 && time.Since(begin) > budget {
				return nil
			}
		}
		return nil
	})
	if err == nil {
		d.wal -= int64(len(ids)-done) * 2 * pageSize
	}
	return done, err
}

// read answers the value of a row, checked.
func (d *disk) read(v *version) ([]byte, error) {
	c := <-d.readers
	if c == nil {
		return nil, ErrClosed
	}
	defer func() { d.readers <- c }()
	d.gate.RLock()
	defer d.gate.RUnlock()
	found := false
	var value []byte
	err := c.query(readSQL, func(row []driver.Value) error {
		found = true
		sum, _ := row[0].(int64)
		value, _ = row[1].([]byte)
		if v.checksum(value) != sum {
			return fmt.Errorf("%w: %s: row %d (revision %d) has a bad checksum (%s)", ErrCorrupt, d.path, v.id, v.revision(), wayOut)
		}
		return nil
	}, v.id)
	if err != nil && !errors.Is(err, ErrCorrupt) {
		return nil, explainSQL(d.path, err)
	}
	if err == nil && !found {
		return nil, errRowMissing
	}
	if value == nil {
		value = []byte{}
	}
	return value, err
}
