package external

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"time"

	"github.com/k3s-io/kine/pkg/tls"
	"github.com/prometheus/client_golang/prometheus"
)

const (
	// openConns bounds the connections of one server for reads. kine has no bound, and PostgreSQL allows
	// 100 for all clients by default. All of them stay open for idleTime: a new one costs more than
	// a hundred reads.
	openConns    = 20
	connectLimit = 5 * time.Second
	idleConns    = openConns
	idleTime     = 5 * time.Minute
)

// Database is a PostgreSQL or a MySQL of the user's.
type Database struct {
	kind    *driver
	rest    string // of the endpoint, after ://
	where   string
	secrets []string
}

// driver is what differs between the kinds of databases.
type driver struct {
	form  string // for messages
	tools string // for backups and for looking into the database
	parse func(rest string) (where string, secrets []string, err error)
	// prepare connects once, creates the database if necessary, and returns the DSN for the others.
	prepare func(ctx context.Context, rest string, files tls.Config) (dsn string, release func(), err error)
	open    func(dsn string) (*sql.DB, error)
	// rows opens the table for its writer. The table is asked for new rows of other servers every poll at least. follow calls wake when there
	// are some, until ctx ends, and failed when it cannot; nil: the database does not tell. The parameters of a statement begin with param, and have
	// numbers if numbered.
	rows     func(ctx context.Context, dsn string) (inserter, error)
	poll     time.Duration
	follow   func(ctx context.Context, dsn string, wake func(revision int64), failed func(error))
	keys     keyQuery
	param    string
	numbered bool

	// The statements of newDialect that differ: rangeIDs selects the newest rows of a range, and listSQL reads them.
	rangeIDs, listSQL, compactSQL, sizeSQL string
	startKey                               func(key string) string // the first key that is not before key. It may be nil

	create string                               // makes the table with its indexes
	names  string                               // type of its column name
	grant  string                               // permits to make and to use the table
	lock   func(context.Context, *sql.Tx) error // takes the lock of a transaction with new rows

	// For [Table]:
	// connect opens a database that exists.
	connect func(rest string, files tls.Config) (db *sql.DB, release func(), err error)
	// primary refuses a database in which running servers cannot be seen.
	primary func(context.Context, *sql.DB) error
	others  string // counts the other connections to the database
	raise   string // makes the next revision follow one; without its end
	follows string // makes the next revision follow the table, if it would not, and then has a row
}

var kinds = map[string]*driver{
	"postgres": &postgres, "postgresql": &postgres,
	"mysql": &mySQL,
}

// IsEndpoint tells whether endpoint names a database for [Parse].
func IsEndpoint(endpoint string) bool {
	scheme, _, found := strings.Cut(endpoint, "://")
	return found && kinds[scheme] != nil
}

// Parse reads an endpoint:
//
//	postgres://USER:PASSWORD@HOST:PORT/DATABASE?…  as libpq and pgx take it
//	mysql://USER:PASSWORD@tcp(HOST:PORT)/DATABASE?…  a DSN of go-sql-driver/mysql
//
// The default database is kubernetes. [Database.Open] creates it if it does not exist. No
// error contains a password.
func Parse(endpoint string) (*Database, error) {
	scheme, rest, _ := strings.Cut(endpoint, "://")
	kind := kinds[scheme]
	if kind == nil {
		return nil, fmt.Errorf("%s://: no such kind of database", scheme)
	}
	where, secrets, err := kind.parse(rest)
	e := &Database{kind: kind, rest: rest, where: where, secrets: secrets}
	if err != nil {
		return nil, fmt.Errorf("%s://…: %s: want %s", scheme, e.scrub(err), kind.form)
	}
	return e, nil
}

// String is the endpoint for messages, without passwords and parameters.
func (e *Database) String() string { return e.where }

// Tools names the programs for backups of such a database.
func (e *Database) Tools() string { return e.kind.tools }

// Options say how a Database is opened.
type Options struct {
	// Files with the CA of the server's certificate, and with a client certificate and its
	// key. Each may be empty.
	CAFile, CertFile, KeyFile string
	// Metrics gets kine's metrics while the backend is open. It may be nil.
	Metrics prometheus.Registerer
	// State is called with the reason when a call finds the database away, and with nil when
	// one finds it back. Calls may overlap.
	State func(error)
	// Warn is called with what slows the datastore down, when that begins. It may be nil.
	Warn func(error)
	// WentBack is called when the database had lost what it had given out, and goes on. It may be nil.
	WentBack func(error)
}

// Open connects, creates the database and its table if they do not exist, and returns a
// backend for [Serve]. ctx bounds only that. The error is ErrRefused if waiting cannot help.
func (e *Database) Open(ctx context.Context, o Options) (*Backend, error) {
	b, err := e.open(ctx, o)
	for tries := 0; alreadyMade(err) && tries < madeTries; tries++ {
		b, err = e.open(ctx, o)
	}
	return b, e.safe(err)
}

// madeTries is how often Open tries again if another server has made the table at the same moment.
const madeTries = 10

func (e *Database) open(ctx context.Context, o Options) (_ *Backend, err error) {
	first, cancel := context.WithTimeout(ctx, connectLimit)
	defer cancel()
	files := tls.Config{CAFile: o.CAFile, CertFile: o.CertFile, KeyFile: o.KeyFile}
	dsn, release, err := e.kind.prepare(first, e.rest, files)
	if err != nil {
		return nil, err
	}
	b := &Backend{external: e, state: o.State, warn: o.Warn, wentBack: o.WentBack, release: release}
	life, end := context.WithCancel(context.WithoutCancel(ctx))
	b.life, b.cancel = life, end
	inTime := context.AfterFunc(ctx, end)
	if b.reads, err = e.kind.open(dsn); err == nil {
		b.work.Go(func() {
			<-life.Done()
			b.reads.Close()
		})
		b.reads.SetMaxOpenConns(openConns)
		b.reads.SetMaxIdleConns(idleConns)
		b.reads.SetConnMaxIdleTime(idleTime)
		if err = e.ensureTable(first, b.reads); err == nil {
			err = b.attach(life, dsn)
		}
	}
	if !inTime() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		b.Close()
		return nil, err
	}
	b.register(o.Metrics)
	return b, nil
}

// attach adds a writer, a reader and the loop that follows the table.
func (b *Backend) attach(life context.Context, dsn string) error {
	kind := b.external.kind
	rows, err := kind.rows(life, dsn)
	if err != nil {
		return err
	}
	b.watchdog = &watchdog{life: life, question: rows.ping,
		lost: func(err error) { b.tell(b.named(err)) },
		refresh: func() {
			b.reads.SetMaxIdleConns(0)
			b.reads.SetMaxIdleConns(idleConns)
		}}
	b.table = newDialect(b.reads, kind)
	b.writer = newWriter(life, rows)
	b.reader = &reader{ctx: life, work: &b.work, read: b.readKeys}
	reader := newTailReader(b.table, b.watchdog)
	b.tail = newTail(reader.read, func(err error) {
		if b.warn != nil {
			b.warn(fmt.Errorf("watches wait: %w", b.named(err)))
		}
	})
	reader.opened = func() { b.tail.doubt.Store(true) }
	b.tail.known = b.newest.Load
	b.tail.mend = func(ctx context.Context) error {
		reader.close() // it may be that which lacks something
		return b.mend(ctx)
	}
	b.writer.wake, b.writer.known, b.writer.mend = b.advance, b.newest.Load, b.mend
	b.work.Go(b.writer.run)
	if b.tail.most = kind.poll; kind.follow != nil {
		b.work.Go(func() {
			kind.follow(life, dsn, b.tail.wake, func(err error) {
				if b.warn != nil {
					b.warn(fmt.Errorf("datastore %s: cannot listen for the writes of other servers, and asks for them every %v until it can: %s", b.external, kind.poll, b.external.scrub(err)))
				}
			})
		})
	}
	return nil
}

// Same tells whether both have the same endpoint.
func (e *Database) Same(other *Database) bool { return e.kind == other.kind && e.rest == other.rest }
