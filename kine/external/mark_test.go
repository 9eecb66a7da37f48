package external

import (
	"context"
	"database/sql"
	"errors"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/k3s-io/kine/pkg/drivers"
	kinemysql "github.com/k3s-io/kine/pkg/drivers/mysql"
	"github.com/k3s-io/kine/pkg/drivers/pgsql"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/k3s-io/kine/pkg/tls"
)

// kine is kine's own driver of the database, which another program has opened.
func (db database) kine(t *testing.T) (_ server.Backend, stop func()) {
	t.Helper()
	e, err := Parse(db.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	dsn, release, err := e.kind.prepare(t.Context(), e.rest, tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	open := kinemysql.New
	if db.kind == "postgres" {
		// kine makes the name of a database in the path lower case.
		at, err := url.Parse(dsn)
		if err != nil {
			t.Fatal(err)
		}
		at.RawQuery += "&dbname=" + strings.Trim(at.Path, "/")
		open, dsn = pgsql.New, strings.TrimPrefix(at.String(), "postgres://")
	}
	config := drivers.Config{DataSourceName: dsn, CompactBatchSize: compactBatch, PollBatchSize: pollBatch, PollInterval: pollInterval}
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	_, backend, err := open(ctx, &work, &config)
	stop = sync.OnceFunc(func() { cancel(); work.Wait(); release() })
	t.Cleanup(stop)
	if err != nil {
		t.Fatal(err)
	}
	return started{backend, ctx}, stop
}

// foreign is a program that writes to the table of a database without the lock.
type foreign struct {
	t    *testing.T
	kind string
	db   *sql.DB
}

func (db database) foreign(t *testing.T) *foreign {
	t.Helper()
	e, err := Parse(db.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	pool, release, err := e.kind.connect(e.rest, tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { pool.Close(); release() })
	return &foreign{t, db.kind, pool}
}

// late begins a transaction with a row.
func (f *foreign) late(lease string) *sql.Tx {
	f.t.Helper()
	tx, err := f.db.Begin()
	if err == nil {
		f.t.Cleanup(func() { tx.Rollback() })
		_, err = tx.Exec("INSERT INTO kine (name, created, deleted, create_revision, prev_revision, " + lease + ") VALUES ('/keys/late', 1, 0, 0, 0, 0)")
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return tx
}

// started is a server of the database.
func (db database) started(t *testing.T) *Backend {
	t.Helper()
	b := db.open(t)
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

func list(ctx context.Context, b *Backend, revision int64) (int64, map[string]bool, error) {
	at, kvs, err := b.List(ctx, "/keys/", "/keys0", 0, revision, false)
	keys := map[string]bool{}
	for _, kv := range kvs {
		keys[kv.Key] = true
	}
	return at, keys, err
}

// started is a backend of kine's that starts with a context of its own.
type started struct {
	server.Backend
	ctx context.Context
}

func (s started) Start(context.Context) error { return s.Backend.Start(s.ctx) }

// layout describes the table, with its indexes.
func (f *foreign) layout() (all []string) {
	f.t.Helper()
	for _, query := range []string{
		"SELECT CONCAT(column_name, ' ', data_type) FROM information_schema.columns WHERE table_name = 'kine' AND table_schema IN ('public', DATABASE()) ORDER BY 1",
		"SELECT index_name FROM information_schema.statistics WHERE table_name = 'kine' AND table_schema = DATABASE() ORDER BY 1",
	} {
		if f.kind == "postgres" {
			query = strings.NewReplacer("DATABASE()", "current_schema()", "index_name FROM information_schema.statistics", "indexname FROM pg_indexes", "table_name = 'kine' AND table_schema =", "tablename = 'kine' AND schemaname =").Replace(query)
		}
		rows, err := f.db.Query(query)
		if err != nil {
			f.t.Fatal(err)
		}
		for rows.Next() {
			var one string
			if err := rows.Scan(&one); err != nil {
				f.t.Fatal(err)
			}
			all = append(all, one)
		}
		if err := rows.Close(); err != nil {
			f.t.Fatal(err)
		}
	}
	return all
}

// refused opens a table of another program's.
func (db database) refused(t *testing.T) {
	t.Helper()
	e, err := Parse(db.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.Open(t.Context(), Options{})
	if err == nil {
		b.Close()
	}
	if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "karve datastore migrate") {
		t.Fatalf("%v, want a refusal that names the migration", err)
	}
}

// The table of another program is refused and left as it is, whatever is in it. A migration reads it.
func TestDatabaseRefusesTheTableOfAnotherProgram(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		kine, stop := db.kine(t)
		ctx, other := t.Context(), db.foreign(t)
		drop := "DROP INDEX kine_name_id_index" // of an older kine
		if db.kind == "mysql" {
			drop += " ON kine"
		}
		if _, err := other.db.ExecContext(ctx, drop); err != nil {
			t.Fatal(err)
		}
		before := other.layout()
		db.refused(t) // without a row
		if err := kine.Start(ctx); err != nil {
			t.Fatal(err)
		}
		db.refused(t) // with kine's own keys
		if _, err := kine.Create(ctx, "/registry/events/a", []byte("made by karve"), 1000); err != nil {
			t.Fatal(err)
		}
		db.refused(t)
		if _, err := kine.Create(ctx, "/registry/events/b", nil, 0); err != nil {
			t.Errorf("the other program: %v", err)
		}
		stop()
		if after := other.layout(); len(before) < 10 || !slices.Equal(after, before) {
			t.Errorf("the table is now %q, and was %q", after, before)
		}
		e, _ := Parse(db.endpoint)
		other.db.Close()
		table, err := e.ReadTable(ctx, Options{})
		if err != nil {
			t.Fatal(err)
		}
		leases := map[string]int64{}
		if err := table.Each(ctx, func(key string, _ []byte, ttl int64) error { leases[key] = ttl; return nil }); err != nil || leases["/registry/events/a"] != 1000 {
			t.Errorf("%v, %v, want the keys with their leases", leases, err)
		}
		table.Close()
	})
}

// A program that writes without the lock does not start with Karve's table.
func TestDatabaseIsRefusedByKine(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b := db.started(t)
		kine, _ := db.kine(t)
		if err := kine.Start(t.Context()); err == nil || !strings.Contains(err.Error(), leaseOfKine) {
			t.Errorf("a start of kine: %v, want that there is no column %s", err, leaseOfKine)
		}
		if _, err := kine.Create(t.Context(), "/keys/a", nil, 0); err == nil {
			t.Error("kine has written")
		}
		if _, err := b.Create(t.Context(), "/keys/a", nil, 500); err != nil {
			t.Error(err)
		}
	})
}

// A permission or a schema that is missing is told at once, with the statement and what helps.
func TestDatabaseWithoutPermission(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		ctx := t.Context()
		open := func(endpoint string, words ...string) {
			t.Helper()
			e, err := Parse(endpoint)
			if err != nil {
				t.Fatal(err)
			}
			b, err := e.Open(ctx, Options{})
			if err == nil {
				err = b.Start(ctx)
				b.Close()
			}
			for _, word := range words {
				if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), word) || strings.Contains(err.Error(), "w0rd") {
					t.Errorf("%v, want a refusal with %q", err, word)
				}
			}
		}
		b := db.started(t)
		poor := strings.Replace(db.endpoint, "karve:", "poor:", 1)
		grant := func(statements ...string) {
			t.Helper()
			for _, statement := range statements {
				if _, err := b.reads.ExecContext(ctx, statement); err != nil {
					t.Fatalf("%s: %v", statement, err)
				}
			}
		}
		var name string
		if err := b.reads.QueryRowContext(ctx, "SELECT "+map[string]string{"postgres": "current_database()", "mysql": "DATABASE()"}[db.kind]).Scan(&name); err != nil || !strings.HasSuffix(db.endpoint, name) {
			t.Errorf("the database is called %q, %v", name, err)
		}
		if db.kind == "mysql" {
			grant("GRANT CREATE ON "+name+".* TO poor@'%'", "DROP TABLE kine")
			open(poor, "kine", "denied", "GRANT ALL ON")
			grant("CREATE TABLE kine (id INT)")
			open(poor, lookSQL, "denied", "GRANT ALL ON")
			grant("DROP TABLE kine", mySQL.create, "GRANT SELECT ON "+name+".* TO poor@'%'")
			open(poor, "INSERT command denied", "GRANT ALL ON")
			grant("REVOKE ALL ON " + name + ".* FROM poor@'%'")
			open(poor, "Access denied", "GRANT ALL ON")
			return
		}
		open(poor, lookSQL, "permission denied for table kine", "ALTER TABLE kine OWNER")
		grant("GRANT SELECT ON kine TO poor", "REVOKE CREATE ON SCHEMA public FROM PUBLIC")
		open(poor, "permission denied", "GRANT")
		open(db.endpoint+"?search_path=nowhere", "CREATE TABLE kine:", "no schema has been selected", "search_path=SCHEMA")
		grant("DROP TABLE kine")
		open(poor, "CREATE TABLE kine:", "permission denied for schema public", "GRANT USAGE, CREATE ON SCHEMA")
	})
}

// Names that differ in one letter's case, or are not ASCII, are keys of their own, in the order of their bytes.
func TestDatabaseNamesAreBytes(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, ctx := db.started(t), t.Context()
		want := []string{"/keys/A", "/keys/a", "/keys/a ", "/keys/a b", "/keys/ä", "/keys/京都"}
		for _, key := range want {
			if _, err := b.Create(ctx, key, []byte(key), 0); err != nil {
				t.Fatalf("%q: %v", key, err)
			}
		}
		var got []string
		for next := "/keys/"; next != ""; { // a page has one key
			_, kvs, err := b.List(ctx, next, "/keys0", 1, 0, false)
			if err != nil {
				t.Fatal(err)
			}
			next = ""
			for _, kv := range kvs {
				got, next = append(got, kv.Key), kv.Key+"\x00"
				if _, one, err := b.Get(ctx, kv.Key, 0, false); err != nil || one == nil || string(one.Value) != kv.Key {
					t.Errorf("get %q: %+v, %v", kv.Key, one, err)
				}
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	})
}
