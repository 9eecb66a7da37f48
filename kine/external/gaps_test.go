package external

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/server"
	"github.com/k3s-io/kine/pkg/tls"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/internal/eventually"
)

// foreign is a program that writes to the table of a database without the lock.
type foreign struct {
	t    *testing.T
	kind string
	db   *sql.DB
	tx   *sql.Tx
	gap  int64 // the revision of an open transaction
	last int64 // a committed one after it

	second *sql.Tx
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
	return &foreign{t: t, kind: db.kind, db: pool}
}

// row is a statement that creates a key at a revision.
func (f *foreign) row(revision int64, key string) string {
	hex := "''"
	if f.kind == "postgres" {
		hex = "''::bytea"
	}
	return fmt.Sprintf("INSERT INTO kine (id, name, created, deleted, create_revision, prev_revision, karve_lease, value, old_value) VALUES (%d, '%s', 1, 0, 0, 0, 0, %s, NULL)", revision, key, hex)
}

func (f *foreign) insert(revision int64, key string) {
	f.t.Helper()
	if _, err := f.db.Exec(f.row(revision, key)); err != nil {
		f.t.Fatal(err)
	}
}

// late begins a transaction with a row.
func (f *foreign) late(revision int64) *sql.Tx {
	f.t.Helper()
	tx, err := f.db.Begin()
	if err == nil {
		f.t.Cleanup(func() { tx.Rollback() })
		_, err = tx.Exec(f.row(revision, fmt.Sprintf("/keys/late-%d", revision)))
	}
	if err != nil {
		f.t.Fatal(err)
	}
	return tx
}

// begin leaves a gap before the newest revisions, of which there are so many more than one: /keys/late is in it, in an open
// transaction. If there are more, the last but one is such a gap, too.
func (f *foreign) begin(more int64) {
	f.t.Helper()
	var newest int64
	if err := f.db.QueryRow("SELECT MAX(id) FROM kine").Scan(&newest); err != nil {
		f.t.Fatal(err)
	}
	f.gap, f.last = newest+1, newest+2+more
	f.tx = f.late(f.gap)
	if more > 0 {
		f.second = f.late(f.last - 1)
	}
	early, err := f.db.Begin()
	if err != nil {
		f.t.Fatal(err)
	}
	defer early.Rollback()
	for revision := f.gap + 1; revision <= f.last; revision++ {
		if more > 0 && revision == f.last-1 {
			continue
		}
		if _, err := early.Exec(f.row(revision, fmt.Sprintf("/keys/early-%d", revision))); err != nil {
			f.t.Fatal(err)
		}
	}
	if err := early.Commit(); err != nil {
		f.t.Fatal(err)
	}
}

// waits tells whether so many statements wait for the open transaction.
func (f *foreign) waits(n int) func() bool {
	// INNODB_TRX stays as it is while it is read more often than every 100 ms.
	statement := "SELECT COUNT(*) FROM information_schema.PROCESSLIST WHERE DB = DATABASE() AND ID <> CONNECTION_ID() AND INFO LIKE 'INSERT INTO kine(id%'"
	if f.kind == "postgres" {
		statement = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
	}
	return func() bool {
		var waiting int
		if err := f.db.QueryRow(statement).Scan(&waiting); err != nil {
			f.t.Fatal(err)
		}
		return waiting >= n
	}
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

// waitFor lets a server wait so long for others' transactions.
func (db database) waitFor(t *testing.T, b *Backend, wait time.Duration) {
	t.Helper()
	e, err := Parse(db.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	config, release, err := e.kind.prepare(t.Context(), e.rest, tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(release)
	b.log.filler.DB.Close()
	if err := b.log.waitFor(e.kind, config.DataSourceName, wait); err != nil {
		t.Fatal(err)
	}
}

func list(ctx context.Context, b *Backend, revision int64) (int64, map[string]bool, error) {
	at, kvs, err := b.List(ctx, "/keys/", "/keys0", 0, revision, false)
	keys := map[string]bool{}
	for _, kv := range kvs {
		keys[kv.Key] = true
	}
	return at, keys, err
}

// When a transaction is rolled back, InnoDB lets those who wait for its row run into a deadlock.
func TestDatabaseListsWhenATransactionIsRolledBack(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		servers := []*Backend{db.started(t), db.started(t), db.started(t)}
		other := db.foreign(t)
		for range 3 {
			other.begin(0)
			var lists sync.WaitGroup
			for i := range 6 {
				lists.Go(func() {
					at, keys, err := list(t.Context(), servers[i%3], 0)
					if err != nil || at < other.last || !keys[fmt.Sprintf("/keys/early-%d", other.last)] {
						t.Errorf("the list at %d has %v, %v, want that of %d", at, keys, err, other.last)
					}
				})
			}
			eventually.True(t, "each server waits for the transaction", other.waits(len(servers)))
			if err := other.tx.Rollback(); err != nil {
				t.Fatal(err)
			}
			lists.Wait()
		}
	})
}

// Lists and watches that wait for a transaction leave connections for reads.
func TestDatabaseReadsBesideAnOpenTransaction(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, other := db.open(t), db.foreign(t)
		db.waitFor(t, b, time.Hour)
		var looks atomic.Int64
		b.log.pause = func(context.Context) { looks.Add(1) }
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Create(t.Context(), "/keys/there", nil, 0); err != nil {
			t.Fatal(err)
		}
		other.begin(0)
		lists, watches := make(chan error, openConns), make(chan server.WatchResult, openConns)
		for range openConns {
			go func() { _, _, err := list(t.Context(), b, 0); lists <- err }()
			go func() { watches <- b.Watch(t.Context(), 0) }()
		}
		eventually.True(t, "all of them have seen the gap", func() bool { return looks.Load() >= 2*openConns && other.waits(1)() })
		ctx, cancel := context.WithTimeout(t.Context(), eventually.Limit)
		defer cancel()
		for range openConns { // after the last one has begun to wait
			if _, kv, err := b.Get(ctx, "/keys/there", 0, false); err != nil || kv == nil {
				t.Fatalf("get: %v, %v, want the key", kv, err)
			}
			if _, _, err := b.Count(ctx, "/keys/", "/keys0", 0); err != nil {
				t.Fatalf("count: %v", err)
			}
		}
		if len(lists)+len(watches) > 0 {
			t.Errorf("%d lists and %d watches have not waited", len(lists), len(watches))
		}
		if err := other.tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		for range openConns {
			if err := eventually.Receive(t, "a list", lists); err != nil {
				t.Error(err)
			}
			w := eventually.Receive(t, "a watch", watches)
			eventually.Receive(t, "its history", w.Eventc)
		}
	})
}

// Many gaps, such as those that a crash of PostgreSQL leaves, are filled once.
func TestDatabaseGapsAreFilledOnce(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, other := db.open(t), db.foreign(t)
		var looks, taken atomic.Int64
		b.log.pause = func(context.Context) { looks.Add(1) }
		isTaken := b.log.taken
		b.log.taken = func(err error) bool {
			is := isTaken(err)
			if is {
				taken.Add(1)
			}
			return is
		}
		if _, err := b.Create(t.Context(), "/keys/first", nil, 0); err != nil {
			t.Fatal(err)
		}
		other.begin(0)
		other.insert(other.last+50, "/keys/after-gaps")
		var lists sync.WaitGroup
		for range openConns {
			lists.Go(func() {
				if at, keys, err := list(t.Context(), b, 0); at != other.last+50 || len(keys) != 3 || err != nil {
					t.Errorf("list at %d: %v, %v, want three keys at %d", at, keys, err, other.last+50)
				}
			})
		}
		eventually.True(t, "all of them have seen the gaps", func() bool { return looks.Load() >= openConns && other.waits(1)() })
		if err := other.tx.Rollback(); err != nil {
			t.Fatal(err)
		}
		lists.Wait()
		if n := taken.Load(); n != 0 {
			t.Errorf("%d gaps were filled that had been", n)
		}
	})
}

// Lists and new watches end when a transaction does not, and say why.
func TestDatabaseReadsEndBesideATransactionThatDoesNot(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, other := db.started(t), db.foreign(t)
		db.waitFor(t, b, time.Second)
		other.begin(0)
		_, _, listed := list(t.Context(), b, 0)
		w := b.Watch(t.Context(), 0)
		watched := eventually.Receive(t, "the end of a watch", w.Errorc)
		for _, err := range []error{listed, watched} {
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), fmt.Sprintf("revision %d", other.gap)) || !strings.Contains(err.Error(), "transaction open") {
				t.Errorf("%v, want the revision and the reason", err)
			}
		}
	})
}

// A live watch has what is committed late, however much later, and also when waiting for it has failed meanwhile.
func TestDatabaseAWatchWaitsForALateTransaction(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, other := db.open(t), db.foreign(t)
		db.waitFor(t, b, time.Second)
		warned := make(chan error, 100)
		b.log.warn = func(err error) { warned <- err }
		if err := b.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		w := b.Watch(t.Context(), 0)
		eventually.Receive(t, "the begin of a watch", w.Eventc)
		for _, more := range []int64{0, gapWindow + 1} {
			other.begin(more)
			if err := eventually.Receive(t, "a warning", warned); !strings.Contains(err.Error(), "transaction open") {
				t.Errorf("%v, want the reason", err)
			}
			if more > 0 {
				if err := other.second.Commit(); err != nil {
					t.Fatal(err)
				}
			}
			time.Sleep(3 * pollInterval) // after which kine's loop would go on: a test that is too short misses that
			if err := other.tx.Commit(); err != nil {
				t.Fatal(err)
			}
			for next := other.gap; next <= other.last; {
				for _, e := range eventually.Receive(t, "the events", w.Eventc).Events {
					if e.KV.ModRevision != next {
						t.Fatalf("event %d, want %d", e.KV.ModRevision, next)
					}
					next++
				}
			}
		}
	})
}

// The list at the revision of a write is followed by a watch, as the newest is.
func TestDatabaseListsAtARevisionWithoutGaps(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, other := db.started(t), db.foreign(t)
		other.begin(0)
		listed := make(chan map[string]bool, 1)
		go func() {
			_, keys, err := list(t.Context(), b, other.last)
			if err != nil {
				t.Error(err)
			}
			listed <- keys
		}()
		eventually.True(t, "the list waits for the transaction", func() bool { return len(listed) > 0 || other.waits(1)() })
		if err := other.tx.Commit(); err != nil {
			t.Fatal(err)
		}
		if keys := eventually.Receive(t, "the list", listed); len(keys) != 2 {
			t.Errorf("%v, want the key that was committed late, too", keys)
		}
	})
}

// A program whose row has a number and is not there yet keeps it. Beside ever new gaps there is an answer.
func TestDatabaseGapsAreLookedAtTwice(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, other, ctx := db.open(t), db.foreign(t), t.Context()
		if _, err := b.Create(ctx, "/keys/first", nil, 0); err != nil {
			t.Fatal(err)
		}
		newest, err := b.log.newest(ctx)
		if err != nil {
			t.Fatal(err)
		}
		other.insert(newest+2, "/keys/second")
		b.log.pause = func(context.Context) { other.insert(newest+1, "/keys/meanwhile") }
		if at, keys, err := list(ctx, b, 0); at != newest+2 || len(keys) != 3 || err != nil {
			t.Errorf("list at %d: %v, %v, want three keys at %d", at, keys, err, newest+2)
		}
		other.insert(newest+4, "/keys/third")
		b.log.pause = func(context.Context) {}
		b.log.wake = func(revision int64) { other.insert(revision+2, fmt.Sprintf("/keys/%d", revision+2)) }
		if at, keys, err := list(ctx, b, 0); at != newest+4 || len(keys) != 4 || err != nil {
			t.Errorf("list at %d: %v, %v, want four keys at %d", at, keys, err, newest+4)
		}
	})
}

// What newest remembers is of the table that is there.
func TestDatabaseWithoutGapsIsRemembered(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, other, ctx := db.open(t), db.foreign(t), t.Context()
		want := func(what string, want int64) {
			t.Helper()
			if got, err := b.log.newest(ctx); got != want || err != nil {
				t.Errorf("%s: %d, %v, want %d", what, got, err, want)
			}
		}
		rows := func(want int) {
			t.Helper()
			var got int
			if err := other.db.QueryRow("SELECT COUNT(*) FROM kine").Scan(&got); err != nil || got != want {
				t.Errorf("%d rows, %v, want %d", got, err, want)
			}
		}
		if _, err := other.db.Exec("DELETE FROM kine"); err != nil {
			t.Fatal(err)
		}
		want("an empty table", 0)
		other.insert(5000, "/keys/1")
		want("a row", 5000)
		other.insert(5000+gapWindow+1, "/keys/2")
		want("a sequence that was raised", 5000+gapWindow+1)
		rows(2)
		if _, err := other.db.Exec("DELETE FROM kine WHERE id > 5000"); err != nil {
			t.Fatal(err)
		}
		want("a table from a backup", 5000)
		other.insert(5002, "/keys/3")
		want("a gap", 5002)
		rows(3)
	})
}

// A create of a key that was deleted is no failure if its row is there, whatever has become of the read before it.
func TestACreateThatIsCommittedIsNoFailure(t *testing.T) {
	d := &table{newest: 9, rows: []row{{5, "/a", true}}, cut: errors.New("lost"), inserted: 8, refused: 1}
	b := kineOn(t, d)
	d.during = func() { b.backend.CurrentRevision(t.Context()) } // that of another's row is kine's answer then
	if rev, err := b.Create(t.Context(), "/a", nil, 0); rev != 8 || err != nil {
		t.Errorf("%d, %v, want revision 8", rev, err)
	}
}

// A watch from now on has a history, too: what was committed since it asked what now is.
func TestAHistoryFromNowOnCutShortEndsTheWatch(t *testing.T) {
	d := &table{newest: 7, rows: []row{{6, "/a", false}}, cut: errors.New("lost"), asked: 5}
	b := kineOn(t, d)
	b.log = &gapless{db: sql.OpenDB(d), filler: &generic.Generic{DB: sql.OpenDB(d)}, since: "COUNT", wake: b.tail.wake, pause: func(context.Context) {}}
	w := b.Watch(t.Context(), 0)
	var batch server.EventBatch
	for batch = range w.Eventc {
		t.Errorf("%v, want the end", batch)
	}
	if err := eventually.Receive(t, "the reason", w.Errorc); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "lost") {
		t.Errorf("%v, want that the connection was lost", err)
	}
}

// The loop that follows the log fills what was there when it saw a gap, and goes on.
func TestDatabaseTheLoopEndsBesideEverNewGaps(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, other := db.open(t), db.foreign(t)
		first, err := b.Create(t.Context(), "/keys/first", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		b.tail.at.Store(first)
		newest := first + 2
		other.insert(newest, "/keys/second")
		b.log.pause = func(context.Context) {
			newest += 2
			other.insert(newest, fmt.Sprintf("/keys/%d", newest))
		}
		ctx, cancel := context.WithTimeout(t.Context(), eventually.Limit)
		defer cancel()
		if err := b.tail.fill(ctx, false); err != nil {
			t.Errorf("it still fills, at %d: %v", newest, err)
		}
	})
}

// A caller who waits for the fill of others' gap does not get its error. What was complete stays so meanwhile.
func TestDatabaseAGapOfOthersIsNoError(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, other, ctx := db.open(t), db.foreign(t), t.Context()
		first, err := b.Create(ctx, "/keys/first", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.log.newest(ctx); err != nil {
			t.Fatal(err)
		}
		db.waitFor(t, b, time.Second)
		other.begin(gapWindow)
		own := make(chan error, 1)
		go func() { own <- b.log.fillAll(ctx, []int64{other.gap}) }()
		eventually.True(t, "it waits for the transaction", other.waits(1))
		if err := b.log.fillAll(ctx, []int64{other.last}); err != nil {
			t.Errorf("a gap that is none any more: %v", err)
		}
		if err := eventually.Receive(t, "the end of the fill", own); status.Code(err) != codes.Unavailable {
			t.Errorf("the gap itself: %v, want that it is open", err)
		}
		if _, err := b.log.newest(ctx); err == nil {
			t.Error("newest does not wait for the gap")
		}
		if err := b.log.upTo(ctx, first); err != nil {
			t.Errorf("a list at a revision that was complete: %v", err)
		}
	})
}

// What live watches still wait for is not removed.
func TestDatabaseCompactionWaitsForWatches(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		if db.kind == "mysql" {
			t.Skip("InnoDB lets the compaction itself wait for the transaction")
		}
		b, other, ctx := db.started(t), db.foreign(t), t.Context()
		db.waitFor(t, b, time.Second)
		if _, err := b.Create(ctx, "/keys/first", nil, 0); err != nil {
			t.Fatal(err)
		}
		other.begin(compactRetain + 50)
		if db.kind == "postgres" {
			if _, err := other.db.Exec(fmt.Sprintf("SELECT setval(pg_get_serial_sequence('kine', 'id'), %d)", other.last)); err != nil {
				t.Fatal(err)
			}
		}
		eventually.True(t, "the loop waits for the transaction", other.waits(1))
		newest, err := b.Create(ctx, "/keys/newest", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := b.Compact(ctx, newest); err != nil {
			t.Fatal(err)
		}
		var at int64
		if err := other.db.QueryRow("SELECT MAX(prev_revision) FROM kine WHERE name = 'compact_rev_key'").Scan(&at); err != nil || at >= other.gap {
			t.Errorf("compacted up to %d, %v; the loop has all before %d", at, err, other.gap)
		}
	})
}
