package external

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/k3s-io/kine/pkg/server"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/internal/eventually"
)

// table is a database. It has the answers to queries.
type table struct {
	newest int64
	rows   []row // of any query
	cut    error // instead of what comes after the rows
}

type row struct {
	id      int64
	name    string
	deleted bool
}

func (d *table) Connect(context.Context) (sqldriver.Conn, error) { return d, nil }
func (d *table) Driver() sqldriver.Driver                        { return nil }
func (d *table) Prepare(string) (sqldriver.Stmt, error)          { return nil, errors.New("not used") }
func (d *table) Close() error                                    { return nil }
func (d *table) Begin() (sqldriver.Tx, error)                    { return d, nil }
func (d *table) Rollback() error                                 { return nil }
func (d *table) Commit() error                                   { return errCommit }

var errCommit = errors.New("the connection is gone")

func (d *table) ExecContext(context.Context, string, []sqldriver.NamedValue) (sqldriver.Result, error) {
	return sqldriver.RowsAffected(1), nil
}

func (d *table) BeginTx(context.Context, sqldriver.TxOptions) (sqldriver.Tx, error) { return d, nil }

// QueryContext answers as kine's SELECTs do: each row has the newest and the compacted revision, and
// without a row there is one of nulls.
func (d *table) QueryContext(_ context.Context, query string, _ []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if !strings.Contains(query, "created") { // one of the two revisions
		if strings.Contains(query, "compact_rev_key") {
			return &answer{columns: 1, rows: [][]sqldriver.Value{{int64(0)}}}, nil
		}
		return &answer{columns: 1, rows: [][]sqldriver.Value{{d.newest}}}, nil
	}
	out := &answer{columns: 9, end: d.cut}
	for _, column := range []string{", value", ", old_value"} {
		if strings.Contains(query, column) {
			out.columns++
		}
	}
	add := func(values ...sqldriver.Value) {
		out.rows = append(out.rows, append(values, make([]sqldriver.Value, out.columns-len(values))...))
	}
	for _, r := range d.rows {
		add(d.newest, int64(0), r.id, r.name, true, r.deleted, int64(0), int64(0), int64(0))
	}
	if len(d.rows) == 0 && d.cut == nil {
		add(d.newest, int64(0))
	}
	return out, nil
}

// answer is the rows of a query.
type answer struct {
	columns int
	rows    [][]sqldriver.Value
	end     error
}

func (a *answer) Columns() []string { return make([]string, a.columns) }
func (a *answer) Close() error      { return nil }

func (a *answer) Next(to []sqldriver.Value) error {
	if len(a.rows) == 0 {
		if a.end != nil {
			return a.end
		}
		return io.EOF
	}
	copy(to, a.rows[0])
	a.rows = a.rows[1:]
	return nil
}

// kineOn is a backend on a table.
func kineOn(t *testing.T, d *table) *Backend {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	b := anExternal()
	b.cancel = cancel
	b.reads = sql.OpenDB(d)
	b.work.Go(func() { <-ctx.Done(); b.reads.Close() })
	b.watchdog = &watchdog{life: ctx, question: func(context.Context) error { return nil }, refresh: func() {}}
	b.life, b.table = ctx, newDialect(b.reads, &mySQL)
	b.tail = newTail(func(context.Context, int64) (server.EventBatch, int64, error) {
		return server.EventBatch{CurrentRev: math.MaxInt64}, 0, nil
	}, func(error) {})
	t.Cleanup(b.Close)
	return b
}

// A list that was cut short is no list: the API server's cache would delete what it lacks.
func TestAListCutShortIsAnError(t *testing.T) {
	lost := errors.New("unexpected EOF (u:s3cret@h)")
	for name, d := range map[string]*table{
		"cut short":     {newest: 7, rows: []row{{5, "/a", false}}, cut: lost},
		"not yet begun": {newest: 7, cut: lost},
	} {
		b := kineOn(t, d)
		_, _, listed := b.List(t.Context(), "/", "0", 0, 0, false)
		_, _, got := b.Get(t.Context(), "/a", 0, false)
		for _, err := range []error{listed, got} {
			if status.Code(err) != codes.Unavailable || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%s: %v, want Unavailable and no password", name, err)
			}
		}
	}
}

// A history that was cut short is no history.
func TestAHistoryCutShortEndsTheWatch(t *testing.T) {
	for name, c := range map[string]struct {
		table table
		want  error
	}{
		"whole":          {table{newest: 7, rows: []row{{6, "/a", false}, {7, "/b", false}}}, nil},
		"nothing":        {table{newest: 5}, nil},
		"cut short":      {table{newest: 7, rows: []row{{6, "/a", false}}, cut: errors.New("lost")}, status.Error(codes.Unavailable, "lost")},
		"the future":     {table{newest: 3}, server.ErrFutureRev},
		"not even begun": {table{newest: 7, cut: errors.New("lost")}, status.Error(codes.Unavailable, "lost")},
	} {
		b := kineOn(t, &c.table)
		ctx, cancel := context.WithCancel(t.Context())
		w := b.Watch(ctx, 6)
		batch := eventually.Receive(t, name, w.Eventc)
		switch {
		case c.want == nil && (batch.CurrentRev != c.table.newest || len(batch.Events) != len(c.table.rows)):
			t.Errorf("%s: %v, want the history", name, batch)
		case c.want != nil && batch.CurrentRev != 0:
			t.Errorf("%s: %v, want %v", name, batch, c.want)
		case c.want != nil:
			if err := eventually.Receive(t, name, w.Errorc); status.Code(err) != status.Code(c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
		cancel()
	}
}

func TestNoEventComesTwice(t *testing.T) {
	o := order{seen: 2}
	var got []int64
	for _, revision := range []int64{3, 4, 3, 4, 5} {
		batch := server.EventBatch{CurrentRev: revision, Events: []*server.Event{{KV: &server.KeyValue{Key: "/a", ModRevision: revision}}}}
		for _, e := range o.next(batch).Events {
			got = append(got, e.KV.ModRevision)
		}
	}
	if !slices.Equal(got, []int64{3, 4, 5}) {
		t.Errorf("events of %v, want 3, 4 and 5", got)
	}
}

// kine ends the process when the commit of a compaction fails.
func TestACompactionWhoseCommitFailsIsAnError(t *testing.T) {
	d := &table{newest: 3 * compactRetain}
	b := kineOn(t, d)
	b.tail.at.Store(d.newest)
	if _, err := b.Compact(t.Context(), compactRetain); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), errCommit.Error()) {
		t.Errorf("%v, want Unavailable and %q", err, errCommit)
	}
}
