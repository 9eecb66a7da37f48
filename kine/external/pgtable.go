package external

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"math"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/k3s-io/kine/pkg/query"
)

const (
	// pgLock is the number of the advisory lock that a transaction with new rows holds.
	pgLock int64 = 0x6b61727665 // "karve"
	// pgChannel is where servers tell each other of new rows.
	pgChannel = "karve_kine"
	// pgSession makes the database notice within seconds that a server which may hold the lock is gone.
	pgSession = `SET tcp_keepalives_idle = 5; SET tcp_keepalives_interval = 2; SET tcp_keepalives_count = 3;
		SET idle_in_transaction_session_timeout = '10s'; SET lock_timeout = %d`
	// pgLast is the revision that was given out last, by any transaction.
	pgLast = "pg_sequence_last_value(pg_get_serial_sequence('kine', 'id')::regclass)"
	// pgKnows divides by zero if the table lacks a revision, or if the next one is not above the table's.
	pgKnows = "select 1 / count(*) from (select coalesce(max(id), 0) as id from kine) as newest where id >= $1 and id <= coalesce(" + pgLast + ", 0)"
)

// pgTable is the table in PostgreSQL.
type pgTable struct {
	db     *sql.DB // of one connection
	line   *line
	config *pgx.ConnConfig // of other connections
}

// pgInsert inserts a row unless the key is at another revision than the previous one, as kine does.
var pgInsert = query.New(`
	INSERT INTO kine(name, created, deleted, create_revision, prev_revision, `+leaseColumn+`, value, old_value)
	WITH
	ikv AS (SELECT id, create_revision, value FROM kine WHERE id = ? AND deleted = 0)
	SELECT ?, ?, ?, (SELECT COALESCE(NULLIF(create_revision, 0), id) FROM ikv), ?, ?, ?, (SELECT value FROM ikv)
	WHERE COALESCE((SELECT MAX(id) FROM kine WHERE name = ?), 0) = ?
	RETURNING id`, "$", true, "InsertReturning")

func pgArguments(w *write) []any {
	return []any{w.previous, w.key, columnOf(w.created), columnOf(w.deleted), w.previous, w.ttl, w.value, w.key, w.previous}
}

// pgConfig is the configuration of a connection of which both ends notice within seconds that the other is gone, and whose
// statements wait for a lock for lockLimit.
func pgConfig(dsn string) (*pgx.ConnConfig, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	dial := config.DialFunc
	config.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if tcp, ok := conn.(*net.TCPConn); ok {
			tcp.SetKeepAliveConfig(net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3})
		}
		return conn, err
	}
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		_, err := conn.Exec(ctx, fmt.Sprintf(pgSession, lockLimit.Milliseconds())).ReadAll()
		return err
	}
	return config, nil
}

func openPostgresTable(_ context.Context, dsn string) (inserter, error) {
	config, err := pgConfig(dsn)
	if err != nil {
		return nil, err
	}
	writes, line := config.Copy(), &line{}
	writes.DialFunc = line.dial(config.DialFunc)
	db := stdlib.OpenDB(*writes)
	db.SetMaxOpenConns(1)
	return &pgTable{db, line, config}, nil
}

func (t *pgTable) close() { t.db.Close() }

func (t *pgTable) primary() *sql.DB { return t.db }

func (t *pgTable) ping(ctx context.Context) error {
	return tryPostgres(ctx, t.config)
}

// insert sends the whole transaction at once, so it takes one round trip.
func (t *pgTable) insert(ctx context.Context, batch []*write, known int64) (revisions []int64, err error) {
	defer func(began time.Time) {
		observe(began, err, pgInsert.Fill(pgArguments(batch[0])))
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
	// A leader renews its lease long before that. Otherwise COMMIT waits until it is known that the time is not over.
	fenced := left < writeLimit
	ctx, ended := t.line.limited(ctx, min(left, writeLimit)) // longer than lockLimit, however long the connection took
	conn.Raw(func(raw any) error {
		c := raw.(*stdlib.Conn).Conn()
		if revisions, err = t.send(ctx, c, batch, known, fenced); err != nil && !c.IsClosed() && c.PgConn().TxStatus() != 'I' {
			if _, failed := c.Exec(ctx, "rollback"); failed != nil {
				c.Close(ctx)
			}
		}
		cut := ended()
		if cut != nil {
			err = afterCut(err, cut, fenced)
		}
		if cut != nil || c.IsClosed() || code(err) == "25006" { // read_only_sql_transaction: the primary may be elsewhere
			return sqldriver.ErrBadConn // only the pool sees it
		}
		return nil
	})
	return revisions, err
}

func (t *pgTable) send(ctx context.Context, conn *pgx.Conn, batch []*write, known int64, fenced bool) (_ []int64, err error) {
	b := &pgx.Batch{}
	// Every statement has a snapshot of its own, so the INSERTs see what was committed before the lock.
	b.Queue("begin isolation level read committed")
	b.Queue("select pg_advisory_xact_lock($1)", pgLock)
	b.Queue(pgKnows, known)
	first := b.Len()
	for _, one := range batch {
		b.Queue(pgInsert.Query, pgArguments(one)...)
	}
	end := func(b *pgx.Batch) {
		b.Queue("select pg_notify($1, (select max(id)::text from kine))", pgChannel)
		b.Queue("commit")
	}
	if !fenced {
		end(b)
	}
	results := conn.SendBatch(ctx, b)
	defer func() { results.Close() }()
	revisions, err := pgRevisions(results, first, len(batch))
	if !fenced && err != nil {
		return nil, err
	}
	if fenced {
		if err = errors.Join(err, results.Close()); err != nil {
			return nil, tagged{err, errUnsent}
		}
		if _, err := timeLeft(batch); err != nil {
			return nil, err
		}
		b = &pgx.Batch{}
		end(b)
		results = conn.SendBatch(ctx, b)
	}
	for range 2 {
		if _, err := results.Exec(); err != nil {
			return nil, err
		}
	}
	if err := results.Close(); err != nil {
		return nil, err
	}
	return revisions, nil
}

// pgRevisions reads the answers to some statements before INSERTs, and to these.
func pgRevisions(results pgx.BatchResults, before, inserts int) ([]int64, error) {
	for range before {
		if _, err := results.Exec(); err != nil {
			return nil, pgReason(err)
		}
	}
	revisions := make([]int64, inserts)
	for i := range revisions {
		if err := results.QueryRow().Scan(&revisions[i]); err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return nil, err
		}
	}
	return revisions, nil
}

// pgReason recognises lock_not_available and division_by_zero (pgKnows), in a statement before the INSERTs: the database skips everything after
// it.
func pgReason(err error) error {
	switch code(err) {
	case "55P03":
		return errLocked
	case "22012":
		return errBehind
	}
	return err
}

// The pause before another attempt to listen.
const listenAgain = time.Second

// followPostgres calls wake for the rows of every server, as soon as they are committed, until ctx ends.
// It calls failed with the first error.
func followPostgres(ctx context.Context, dsn string, wake func(int64), failed func(error)) {
	for reported := false; ctx.Err() == nil; {
		if err := listenPostgres(ctx, dsn, wake); !reported && ctx.Err() == nil {
			failed(err)
			reported = true
		}
		select {
		case <-time.After(listenAgain):
		case <-ctx.Done():
		}
	}
}

func listenPostgres(ctx context.Context, dsn string, wake func(int64)) error {
	config, err := pgConfig(dsn)
	if err != nil {
		return err
	}
	first, cancel := context.WithTimeout(ctx, connectLimit)
	conn, err := pgx.ConnectConfig(first, config)
	cancel()
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), connectLimit)
		defer cancel()
		conn.Close(ctx)
	}()
	if _, err := conn.Exec(ctx, "listen "+pgChannel); err != nil {
		return err
	}
	wake(math.MaxInt64) // for what was written before
	for {
		n, err := conn.WaitForNotification(ctx)
		if err != nil {
			return err
		}
		revision, err := strconv.ParseInt(n.Payload, 10, 64)
		if err != nil {
			return fmt.Errorf("notification %q: %w", n.Payload, err)
		}
		wake(revision)
	}
}
