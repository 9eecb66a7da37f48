package external

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/internal/eventually"
)

// openTelling opens a server that tells of a database that went back.
func (db database) openTelling(t *testing.T, told func(error)) *Backend {
	t.Helper()
	e, err := Parse(db.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	b, err := e.Open(t.Context(), Options{WentBack: told})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	if err := b.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

// run runs statements.
func (f *foreign) run(statements ...string) {
	f.t.Helper()
	for _, statement := range statements {
		if _, err := f.db.Exec(statement); err != nil {
			f.t.Fatalf("%s: %v", statement, err)
		}
	}
}

// endOthers ends all other connections to the database.
func (f *foreign) endOthers(kind string) {
	f.t.Helper()
	if kind == "postgres" {
		f.run("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()")
		return
	}
	rows, err := f.db.Query("SELECT ID FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID()")
	if err != nil {
		f.t.Fatal(err)
	}
	var kills []string
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			f.t.Fatal(err)
		}
		kills = append(kills, fmt.Sprint("KILL ", id))
	}
	for _, kill := range kills {
		f.db.Exec(kill) // it may have ended
	}
}

// A database loses its newest writes under two servers, as after a failover to an asynchronous replica. Watches end, what clients have seen is
// compacted, no revision is used twice, and one server says what was lost.
func TestDatabaseGoesBack(t *testing.T) {
	cut := func(other *foreign, kept int64) { // as the replica is
		other.run(fmt.Sprint("DELETE FROM kine WHERE id > ", kept))
	}
	for name, goBack := range map[string]func(other *foreign, kind string, kept, last int64){
		"the newest writes are gone": func(other *foreign, kind string, kept, _ int64) {
			if cut(other, kept); kind == "postgres" {
				other.run(fmt.Sprintf("SELECT setval(pg_get_serial_sequence('kine', 'id'), %d)", kept))
			} else {
				other.run(fmt.Sprintf("ALTER TABLE kine AUTO_INCREMENT = %d", kept+1))
			}
		},
		"others are in their place": func(other *foreign, kind string, _, last int64) {
			other.run(fmt.Sprintf("UPDATE kine SET name = '/keys/other' WHERE id = %d", last))
			other.endOthers(kind)
		},
	} {
		t.Run(name, func(t *testing.T) {
			databases(t, func(t *testing.T, db database) {
				var mu sync.Mutex
				var told []error
				tell := func(err error) {
					mu.Lock()
					defer mu.Unlock()
					told = append(told, err)
				}
				a, b, other, ctx := db.openTelling(t, tell), db.openTelling(t, tell), db.foreign(t), t.Context()
				kept, err := a.Create(ctx, "/keys/kept", nil, 0)
				if err != nil {
					t.Fatal(err)
				}
				var last int64
				for i := range 10 {
					if last, err = a.Create(ctx, fmt.Sprintf("/keys/lost-%d", i), nil, 0); err != nil {
						t.Fatal(err)
					}
				}
				watches := []server.WatchResult{a.Watch(ctx, last+1), b.Watch(ctx, last+1)}
				for _, one := range []*Backend{a, b} {
					eventually.Nil(t, "both servers have all of it", func() error {
						if at := one.tail.at.Load(); at < last {
							return fmt.Errorf("at %d of %d", at, last)
						}
						return nil
					})
				}
				goBack(other, db.kind, kept, last)
				for _, w := range watches {
					ended := make(chan struct{})
					go func() {
						defer close(ended)
						for range w.Eventc {
						}
					}()
					eventually.Receive(t, "the end of a watch", ended)
				}
				var next int64
				eventually.Nil(t, "a write", func() (err error) {
					next, err = b.Create(ctx, "/keys/next", nil, 0)
					return err
				})
				if next < last+backup.RevisionMargin {
					t.Errorf("revision %d after %d", next, last)
				}
				for _, one := range []*Backend{a, b} {
					if w := one.Watch(ctx, last+1); w.CompactRevision <= last {
						t.Errorf("a watch from %d: %+v, want that it is compacted", last+1, w)
					}
					if _, there, err := list(ctx, one, 0); err != nil || !there["/keys/kept"] || !there["/keys/next"] {
						t.Errorf("a list: %v, %v", there, err)
					}
				}
				mu.Lock()
				defer mu.Unlock()
				if len(told) != 1 || !strings.Contains(told[0].Error(), "went back in time") {
					t.Errorf("told %v, want one error", told)
				}
			})
		})
	}
}

// The first to find out is often a write. It waits until the table goes on above what was seen.
func TestDatabaseWritesAboveWhatItHasGivenOut(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, other, ctx := db.open(t), db.foreign(t), t.Context() // nothing follows the table
		first, err := b.Create(ctx, "/keys/first", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		last, err := b.Create(ctx, "/keys/last", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		other.run(fmt.Sprint("DELETE FROM kine WHERE id > ", first))
		if db.kind == "postgres" {
			other.run(fmt.Sprintf("SELECT setval(pg_get_serial_sequence('kine', 'id'), %d)", first))
		} else {
			other.run(fmt.Sprintf("ALTER TABLE kine AUTO_INCREMENT = %d", first+1))
		}
		if _, _, err := b.Get(ctx, "/keys/first", 0, false); err == nil {
			t.Error("a read of a database that lacks an acknowledged write is answered")
		}
		if next, err := b.Create(ctx, "/keys/next", nil, 0); err != nil || next < last+backup.RevisionMargin {
			t.Errorf("revision %d after %d, %v", next, last, err)
		}
		if db.kind != "postgres" {
			return
		}
		// A sequence that is behind the table, of a server that runs and of one that starts.
		newest, err := b.Create(ctx, "/keys/newest", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, one := range []*Backend{b, db.open(t)} {
			other.run(fmt.Sprintf("SELECT setval(pg_get_serial_sequence('kine', 'id'), %d)", last))
			next, err := one.Create(ctx, fmt.Sprintf("/keys/after-%d", newest), nil, 0)
			if err != nil || next != newest+1 {
				t.Errorf("revision %d after %d, %v", next, newest, err)
			}
			newest = next
		}
	})
}
