package external

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

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
	config, release, err := e.kind.prepare(t.Context(), e.rest, tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	config.CompactBatchSize, config.PollBatchSize, config.PollInterval = compactBatch, pollBatch, pollInterval
	ctx, cancel := context.WithCancel(context.Background())
	var work sync.WaitGroup
	_, backend, err := e.kind.open(ctx, &work, &config)
	stop = sync.OnceFunc(func() { cancel(); work.Wait(); release() })
	t.Cleanup(stop)
	if err != nil {
		t.Fatal(err)
	}
	return started{backend, ctx}, stop
}

// foreign is a program that writes to the table of a database without the lock.
type foreign struct {
	t  *testing.T
	db *sql.DB
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
	return &foreign{t, pool}
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

// filled is a kine that runs and has a cluster.
func (db database) filled(t *testing.T, manager string) (_ server.Backend, stop func()) {
	t.Helper()
	kine, stop := db.kine(t)
	if err := kine.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	for key, value := range map[string]string{"/registry/namespaces/kube-system": "made by " + manager, "/registry/events/a": "v"} {
		if _, err := kine.Create(t.Context(), key, []byte(value), 1000); err != nil {
			t.Fatal(err)
		}
	}
	return kine, stop
}

// The table of k3s is refused and left as it is. A migration reads it.
func TestDatabaseRefusesTheTableOfAnotherProgram(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		kine, stop := db.filled(t, "k3s")
		e, err := Parse(db.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := e.Open(t.Context(), Options{}); !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "karve datastore migrate") {
			if err == nil {
				b.Close()
			}
			t.Errorf("%v, want a refusal that names the migration", err)
		}
		if _, err := kine.Create(t.Context(), "/registry/events/b", nil, 0); err != nil {
			t.Errorf("the other program: %v", err)
		}
		stop()
		table, err := e.ReadTable(t.Context(), Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer table.Close()
		leases := map[string]int64{}
		if err := table.Each(t.Context(), func(key string, _ []byte, ttl int64) error { leases[key] = ttl; return nil }); err != nil || leases["/registry/events/a"] != 1000 {
			t.Errorf("%v, %v, want the keys with their leases", leases, err)
		}
	})
}

// The table of an earlier Karve becomes this one's. A program that still writes as kine does fails and does not lose a write. The
// statements of docs/datastore.md give the table back.
func TestDatabaseTakesTheTableOfAnEarlierKarve(t *testing.T) {
	text, err := os.ReadFile("../../docs/datastore.md")
	if err != nil {
		t.Fatal(err)
	}
	databases(t, func(t *testing.T, db database) {
		kine, stop := db.filled(t, "karve")
		ctx := t.Context()
		b := db.started(t)
		_, kv, err := b.Get(ctx, "/registry/events/a", 0, false)
		if err != nil || kv == nil || kv.Lease != 1000 {
			t.Fatalf("%+v, %v, want the key with its lease", kv, err)
		}
		want := func(what string, err error) {
			t.Helper()
			if err == nil || !strings.Contains(err.Error(), leaseOfKine) {
				t.Errorf("%s of the other program: %v, want that it has no column %s", what, err, leaseOfKine)
			}
		}
		_, err = kine.Create(ctx, "/registry/events/b", nil, 0)
		want("a create", err)
		_, _, _, err = kine.Update(ctx, kv.Key, nil, kv.ModRevision, 0)
		want("an update", err)
		_, _, _, err = kine.Delete(ctx, kv.Key, kv.ModRevision)
		want("a delete", err)
		_, _, err = kine.Get(ctx, kv.Key, 0, false)
		want("a get", err)
		_, _, err = kine.List(ctx, "/registry/", "/registry0", 0, 0, false)
		want("a list", err)
		stop()
		late, stop := db.kine(t)
		want("a start", late.Start(ctx))
		stop()
		if _, kvs, err := b.List(ctx, "/registry/", "/registry0", 0, 0, false); err != nil || len(kvs) != 3 {
			t.Errorf("%d keys, %v, want both and kine's", len(kvs), err)
		}
		if _, err := b.Create(ctx, "/registry/events/c", nil, 500); err != nil {
			t.Fatal(err)
		}

		for _, statement := range []string{b.external.kind.back(string(text)), b.external.kind.rename} {
			b.Close()
			other := db.foreign(t)
			if _, err := other.db.ExecContext(ctx, statement); err != nil {
				t.Fatalf("%s: %v", statement, err)
			}
			if statement == b.external.kind.rename {
				break
			}
			kine, stop := db.kine(t)
			if err := kine.Start(ctx); err != nil {
				t.Error(err)
			}
			if _, kv, err := kine.Get(ctx, "/registry/events/c", 0, false); err != nil || kv == nil || kv.Lease != 500 {
				t.Errorf("after the return: %+v, %v", kv, err)
			}
			stop()
		}
		if _, kv, err := db.open(t).Get(ctx, "/registry/events/c", 0, false); err != nil || kv == nil {
			t.Errorf("after another upgrade: %v, %v", kv, err)
		}
	})
}

// back is the statement of the documentation that gives the table back.
func (k *driver) back(docs string) string {
	for line := range strings.Lines(docs) {
		if line = strings.Trim(line, " `|;\n"); strings.HasPrefix(line, "ALTER TABLE kine") && strings.Contains(line, " "+leaseOfKine) && strings.Contains(line, "CHANGE") == strings.Contains(k.rename, "CHANGE") {
			return line
		}
	}
	return "none in docs/datastore.md"
}

// A table with rows that are not committed is not taken: they would become visible behind those who read it.
func TestDatabaseTakesNoTableWithAnOpenTransaction(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		_, stop := db.filled(t, "karve")
		stop()
		tx := db.foreign(t).late(leaseOfKine)
		e, err := Parse(db.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		if b, err := e.Open(t.Context(), Options{}); err == nil || errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "transaction open") {
			if err == nil {
				b.Close()
			}
			t.Errorf("%v, want that a transaction is open, and may end", err)
		}
		if err := tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if _, keys, err := list(t.Context(), db.open(t), 0); err != nil || !keys["/keys/late"] {
			t.Errorf("%v, %v, want what was committed before", keys, err)
		}
	})
}

// Servers that start at the same time make one table Karve's.
func TestDatabaseIsTakenOnce(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		_, stop := db.filled(t, "karve")
		stop()
		e, err := Parse(db.endpoint)
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() {
				b, err := e.Open(t.Context(), Options{})
				if err != nil {
					t.Error(fmt.Errorf("server %d: %w", i, err))
					return
				}
				b.Close()
			})
		}
		all.Wait()
	})
}
