package external

import (
	"context"
	"database/sql"
	"strings"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/query"
	"github.com/k3s-io/kine/pkg/server"
)

const (
	// readQueries bounds the queries for single keys that run at the same time.
	readQueries = 2
	readKeys    = 64
)

// The columns of a query for keys: the newest revision, and the row of a key, or nulls if there is none.
const keyColumns = "newest.id, kv.id, kv.name, kv.created, kv.create_revision, kv." + leaseColumn + ", kv.value"

// A keyQuery makes the query of the newest rows of keys.
type keyQuery func(keys []string) (*query.Named, []any)

// A reader reads single keys, as they are now. The keys that are asked for while queries run are the next
// query: a database takes nearly as long to plan a query as to find eight keys. Each query begins after
// the calls that it answers, so they get what any server has acknowledged.
type reader struct {
	ctx  context.Context
	work *sync.WaitGroup // has the queries. No query begins after ctx has ended and end has returned
	read func(ctx context.Context, keys []string) (revision int64, rows map[string]*server.KeyValue, err error)

	mu      sync.Mutex
	waiting []*ask
	running int
}

// An ask is a key that somebody waits for.
type ask struct {
	ctx    context.Context // of the caller
	key    string
	answer chan found // has room for the answer
}

type found struct {
	revision int64
	kv       *server.KeyValue // nil: no such key
	err      error
}

func (r *reader) get(ctx context.Context, key string) (int64, *server.KeyValue, error) {
	one := &ask{ctx, key, make(chan found, 1)}
	r.mu.Lock()
	if r.ctx.Err() != nil {
		r.mu.Unlock()
		return 0, nil, errClosed
	}
	r.waiting = append(r.waiting, one)
	if r.running < readQueries {
		r.running++
		r.work.Go(r.run)
	}
	r.mu.Unlock()
	select {
	case f := <-one.answer:
		return f.revision, f.kv, f.err
	case <-ctx.Done():
		return 0, nil, ctx.Err()
	}
}

// end waits for calls that have seen that ctx has not ended, so that work can be waited for.
func (r *reader) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
}

// run answers until nobody waits.
func (r *reader) run() {
	for {
		r.mu.Lock()
		n := min(len(r.waiting), readKeys)
		if n == 0 {
			r.running--
			r.mu.Unlock()
			return
		}
		batch := r.waiting[:n:n]
		r.waiting = r.waiting[n:]
		if len(r.waiting) == 0 {
			r.waiting = nil
		}
		r.mu.Unlock()
		r.answer(batch)
	}
}

// answer answers a batch. If the database refuses a key, each is asked for alone: one that it refuses must not be the
// error of the others. Any other error is the answer to all.
func (r *reader) answer(batch []*ask) {
	ctx, cancel := context.WithTimeout(r.ctx, writeLimit)
	defer cancel()
	if len(batch) == 1 { // the caller may leave
		defer context.AfterFunc(batch[0].ctx, cancel)()
	}
	keys := make([]string, len(batch))
	for i, one := range batch {
		keys[i] = one.key
	}
	revision, rows, err := r.read(ctx, keys)
	if refusedData(err) && len(batch) > 1 {
		for i := range batch {
			r.answer(batch[i : i+1])
		}
		return
	}
	for _, one := range batch {
		f := found{revision: revision, err: err}
		if kv := rows[one.key]; kv != nil {
			own := *kv
			f.kv = &own
		}
		one.answer <- f
	}
}

// readKeys reads the newest rows of keys in one query.
func (b *Backend) readKeys(ctx context.Context, keys []string) (revision int64, rows map[string]*server.KeyValue, err error) {
	named, arguments := b.external.kind.keys(keys)
	defer func(began time.Time) { observe(began, err, named.Fill(arguments)) }(time.Now())
	known := b.newest.Load()
	result, err := b.reads.QueryContext(ctx, named.Query, arguments...)
	if err != nil {
		return 0, nil, err
	}
	defer result.Close()
	rows = map[string]*server.KeyValue{}
	for result.Next() {
		var newest, id, create, lease sql.NullInt64
		var created sql.NullBool
		var name sql.NullString
		var value []byte
		if err := result.Scan(&newest, &id, &name, &created, &create, &lease, &value); err != nil {
			return 0, nil, err
		}
		if revision = newest.Int64; !id.Valid {
			continue
		}
		kv := &server.KeyValue{Key: name.String, Value: value, ModRevision: id.Int64, CreateRevision: create.Int64, Lease: lease.Int64}
		if created.Bool {
			kv.CreateRevision = kv.ModRevision
		}
		rows[kv.Key] = kv
	}
	if err := result.Err(); err != nil {
		return 0, nil, err
	}
	if revision == 0 { // the table is empty: kine has not started
		return 0, nil, server.ErrGRPCUnhealthy
	}
	return revision, rows, b.checkRevision(known, revision)
}

var pgKeys = query.New("SELECT "+keyColumns+`
	FROM (SELECT MAX(id) AS id FROM kine) AS newest
	LEFT JOIN (unnest(?::text[]) AS wanted(name)
		CROSS JOIN LATERAL (SELECT * FROM kine WHERE kine.name = wanted.name ORDER BY id DESC LIMIT 1) AS kv) ON kv.deleted = 0`,
	"$", true, "GetKeys")

func pgKeyQuery(keys []string) (*query.Named, []any) { return pgKeys, []any{keys} }

// mysqlKeyQuery has a subquery for each key. With one for all of them, the database reads the revisions that a key had.
func mysqlKeyQuery(keys []string) (*query.Named, []any) {
	arguments := make([]any, len(keys))
	for i, key := range keys {
		arguments[i] = key
	}
	one := "(SELECT MAX(id) FROM kine WHERE name = ?)"
	return &query.Named{Name: "GetKeys", Query: "SELECT " + keyColumns +
		" FROM (SELECT MAX(id) AS id FROM kine) AS newest LEFT JOIN kine AS kv ON kv.id IN (" + one + strings.Repeat(", "+one, len(keys)-1) +
		") AND kv.deleted = 0"}, arguments
}
