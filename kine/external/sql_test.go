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
	newest         int64
	rows           []row // of any query
	cut            error // instead of what comes after the rows
	insert, commit error
	refuse         func() error // returns the error of an INSERT, if it is not nil
	inserted       int64        // the id of an INSERT; 0: no row
	refused        int          // so many INSERTs have no row first
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

// rowsOf is a table to its writer.
type rowsOf struct{ *table }

func (r rowsOf) insert(_ context.Context, batch []*write, _ *keyRange, _ int64) ([]int64, error) {
	if r.table.insert != nil {
		return nil, r.table.insert
	}
	if r.refuse != nil {
		if err := r.refuse(); err != nil {
			return nil, err
		}
	}
	if r.commit != nil {
		return nil, r.commit
	}
	if r.refused > 0 {
		r.refused--
		return make([]int64, len(batch)), nil
	}
	return slices.Repeat([]int64{r.inserted}, len(batch)), nil
}

func (rowsOf) ping(context.Context) error { return nil }
func (rowsOf) primary() *sql.DB           { return nil }
func (rowsOf) close()                     {}

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
	b.writer, b.life, b.table = newWriter(ctx, rowsOf{d}), ctx, newDialect(b.reads, &mySQL)
	b.tail = newTail(func(context.Context, int64) (server.EventBatch, int64, error) {
		return server.EventBatch{CurrentRev: math.MaxInt64}, 0, nil
	}, func(error) {})
	b.work.Go(b.writer.run)
	t.Cleanup(b.Close)
	return b
}

// A failure is one, whatever is in the table: kine takes that of an INSERT for a conflict, and does not ask whether it has all rows.
func TestNoFailureLooksLikeAnAnswer(t *testing.T) {
	lost, full := errors.New("unexpected EOF (u:s3cret@h)"), errors.New("no space left")
	live, gone := []row{{5, "/a", false}}, []row{{5, "/a", true}}
	ctx := t.Context()
	create := func(b *Backend) error { _, err := b.Create(ctx, "/a", []byte("v"), 0); return err }
	update := func(revision int64) func(b *Backend) error {
		return func(b *Backend) error { _, _, _, err := b.Update(ctx, "/a", nil, revision, 0); return err }
	}
	remove := func(revision int64) func(b *Backend) error {
		return func(b *Backend) error { _, _, _, err := b.Delete(ctx, "/a", revision); return err }
	}
	list := func(b *Backend) error { _, _, err := b.List(ctx, "/", "0", 0, 0, false); return err }
	get := func(b *Backend) error { _, _, err := b.Get(ctx, "/a", 0, false); return err }
	for name, c := range map[string]struct {
		table table
		call  func(b *Backend) error
		want  codes.Code
	}{
		"a create":                               {table{newest: 7, inserted: 8}, create, codes.OK},
		"a create on a full disk":                {table{newest: 7, insert: full}, create, codes.Unavailable},
		"a create whose commit is lost":          {table{newest: 7, inserted: 8, commit: lost}, create, codes.Unavailable},
		"a create of what is there":              {table{newest: 7, rows: live}, create, codes.InvalidArgument},
		"a create of what is there, full disk":   {table{newest: 7, rows: live, insert: full}, create, codes.Unavailable},
		"a create of what has gone meanwhile":    {table{newest: 7}, create, codes.Unavailable},
		"a create again on a full disk":          {table{newest: 7, rows: gone, insert: full}, create, codes.Unavailable},
		"a create again and again":               {table{newest: 7, rows: gone, refused: createTries}, create, codes.Unavailable},
		"a create again":                         {table{newest: 9, rows: gone, refused: 1, inserted: 8}, create, codes.OK},
		"an update on a full disk":               {table{newest: 7, rows: live, insert: full}, update(5), codes.Unavailable},
		"an update of an old revision":           {table{newest: 7, rows: live}, update(4), codes.OK},
		"an update of an old one on a full disk": {table{newest: 7, rows: live, insert: full}, update(4), codes.Unavailable},
		"an update whose commit is lost":         {table{newest: 9, rows: []row{{9, "/a", false}}, inserted: 9, commit: lost}, update(5), codes.Unavailable},
		"a delete on a full disk":                {table{newest: 7, rows: live, insert: full}, remove(5), codes.Unavailable},
		"a delete of what never was":             {table{newest: 7}, remove(5), codes.OK},
		"a delete whose commit is lost":          {table{newest: 7, inserted: 8, commit: lost}, remove(5), codes.Unavailable},
		"a list":                                 {table{newest: 7, rows: live}, list, codes.OK},
		"a list of nothing":                      {table{newest: 7}, list, codes.OK},
		"a list cut short":                       {table{newest: 7, rows: live, cut: lost}, list, codes.Unavailable},
		"a list that has not begun":              {table{newest: 7, cut: lost}, list, codes.Unavailable},
		"a get that has not begun":               {table{newest: 7, cut: lost}, get, codes.Unavailable},
	} {
		if err := c.call(kineOn(t, &c.table)); status.Code(err) != c.want || err != nil && strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v, want %v and no password", name, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		table table
		ok    bool
	}{
		"what never was":        {table{newest: 7}, false},
		"what has been deleted": {table{newest: 7, rows: gone}, false},
		"what is":               {table{newest: 7, rows: live, inserted: 8}, true},
	} {
		if _, kv, ok, err := kineOn(t, &c.table).Delete(ctx, "/a", 5); ok != c.ok || (kv != nil) != c.ok || err != nil {
			t.Errorf("delete %s: %v, %v, %v, want %v", name, kv, ok, err, c.ok)
		}
	}
}

// kine v0.16 answered a read of nothing with the newest revision that this server had seen.
func TestAReadOfNothingHasTheDatabasesRevision(t *testing.T) {
	d := &table{newest: 7}
	b := kineOn(t, d)
	for _, want := range []int64{7, 9} { // 9 is of another server
		d.newest = want
		if rev, kv, err := b.Get(t.Context(), "/a", 0, false); rev != want || kv != nil || err != nil {
			t.Errorf("get: revision %d, %v, %v, want %d", rev, kv, err, want)
		}
		if rev, kvs, err := b.List(t.Context(), "/", "0", 0, 0, false); rev != want || len(kvs) > 0 || err != nil {
			t.Errorf("list: revision %d, %v, %v, want %d", rev, kvs, err, want)
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
