package external

import (
	"context"
	"crypto/rand"
	"database/sql"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/server"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/internal/fence"
)

// While a server is suspended or cut off, another one compacts what its watches wait for. They end, and what is gone is not filled.
func TestDatabaseWatchesEndThatAnotherServerHasCompacted(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		a, b, ctx := db.open(t), db.open(t), t.Context()
		var cutOff atomic.Bool
		asks, goOn := make(chan struct{}, 1), make(chan struct{})
		read := a.tail.read
		a.tail.read = func(ctx context.Context, revision int64) (server.EventBatch, int64, error) {
			if cutOff.Load() {
				select {
				case asks <- struct{}{}:
				default:
				}
				select {
				case <-goOn:
				case <-ctx.Done():
				}
			}
			return read(ctx, revision)
		}
		if err := a.Start(ctx); err != nil {
			t.Fatal(err)
		}
		life, stop := context.WithCancel(ctx)
		if err := b.Start(life); err != nil {
			t.Fatal(err)
		}
		made, err := b.Create(ctx, "/keys/pod", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		eventually.Nil(t, "server A follows", func() error {
			if _, there, err := list(ctx, a, 0); err != nil || !there["/keys/pod"] {
				return fmt.Errorf("%v, %v", there, err)
			}
			return nil
		})
		w := a.Watch(ctx, made+1)
		cutOff.Store(true)
		eventually.Receive(t, "the next question", asks)

		if _, _, ok, err := b.Delete(ctx, "/keys/pod", made); !ok || err != nil {
			t.Fatal(ok, err)
		}
		newest := createMany(t, b)
		eventually.Nil(t, "server B has all of it", func() error {
			if at := b.tail.at.Load(); at < newest {
				return fmt.Errorf("it is at %d of %d", at, newest)
			}
			return nil
		})
		if _, err := b.Compact(ctx, newest); err != nil {
			t.Fatal(err)
		}
		compacted, err := b.revision(ctx, generic.CompactRevSQL)
		if err != nil || compacted <= made+1 {
			t.Fatalf("compacted up to %d, %v, want more than %d", compacted, err, made+1)
		}
		stop()
		b.Close() // from here on, server A expires leases alone

		close(goOn)
		for open := true; open; {
			var batch server.EventBatch
			select {
			case batch, open = <-w.Eventc:
			case <-time.After(eventually.Limit):
				t.Fatal("the watch goes on")
			}
			if batch.CurrentRev > compacted {
				t.Fatalf("the watch is at %d, and history up to %d is gone", batch.CurrentRev, compacted)
			}
		}
		if next := a.Watch(ctx, made+1); next.CompactRevision != compacted {
			t.Errorf("it begins again: %+v, want that it is compacted up to %d", next, compacted)
		}

		if _, err := a.Create(ctx, "/keys/leased", nil, 1); err != nil {
			t.Fatal(err)
		}
		eventually.Nil(t, "leases expire after the loop has ended", func() error {
			if _, kv, err := a.Get(ctx, "/keys/leased", 0, false); err != nil || kv != nil {
				return fmt.Errorf("%v, %v", kv, err)
			}
			return nil
		})
	})
}

// createMany creates more keys than compactions leave, and returns the newest revision.
func createMany(t *testing.T, b *Backend) (newest int64) {
	t.Helper()
	var writes sync.WaitGroup
	for i := range 32 {
		writes.Go(func() {
			for n := range (compactRetain + 100) / 32 {
				if _, err := b.Create(t.Context(), fmt.Sprintf("/keys/%d/%d", i, n), nil, 0); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writes.Wait()
	newest, err := b.Create(t.Context(), "/keys/newest", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return newest
}

// What live watches still wait for is not removed.
func TestDatabaseCompactionWaitsForWatches(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		a, b, ctx := db.started(t), db.open(t), t.Context()
		first, err := a.Create(ctx, "/keys/first", nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		newest := createMany(t, a)
		b.tail.at.Store(first)
		b.advance(newest)
		if _, err := b.Compact(ctx, newest); err != nil {
			t.Fatal(err)
		}
		if at, err := b.revision(ctx, generic.CompactRevSQL); err != nil || at > first {
			t.Errorf("compacted up to %d, %v; the loop has all up to %d", at, err, first)
		}
	})
}

// The revision of a write that has failed is that of no event. Nobody waits for it.
func TestDatabaseWatchesPassOverAFailedWrite(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, ctx := db.started(t), t.Context()
		from, err := b.Create(ctx, "/before", nil, 0) // kine's own write at its start may be later than a revision that is only asked for
		if err != nil {
			t.Fatal(err)
		}
		w := b.Watch(ctx, from+1)
		if err := db.foreign(t).late(leaseColumn).Rollback(); err != nil {
			t.Fatal(err)
		}
		made, err := b.Create(ctx, "/keys/a", nil, 0)
		if err != nil || made < from+2 {
			t.Fatalf("revision %d, %v, want that one after %d is missing", made, err, from)
		}
		batch := server.EventBatch{}
		for batch.CurrentRev < made { // the first live one may be of what was before
			batch = eventually.Receive(t, "the event", w.Eventc)
		}
		if batch.CurrentRev != made || len(batch.Events) != 1 {
			t.Errorf("%+v, want the event of %d", batch, made)
		}
		if at, keys, err := list(ctx, b, 0); at != made || len(keys) != 1 || err != nil {
			t.Errorf("a list at %d: %v, %v", at, keys, err)
		}
		if batch := eventually.Receive(t, "a history", b.Watch(ctx, from+1).Eventc); batch.CurrentRev != made || len(batch.Events) != 1 {
			t.Errorf("a history: %+v, want the event of %d", batch, made)
		}
	})
}

// A write that fails, as on a full disk, is no conflict: the API server would try it for ever. A lease is not forgotten because its key could not be
// deleted once.
func TestDatabaseAWriteThatFailsIsNoConflict(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, other, ctx := db.started(t), db.foreign(t), t.Context()
		old, err := b.Create(ctx, "/keys/a", []byte("1"), 0)
		if err != nil {
			t.Fatal(err)
		}
		now, _, ok, err := b.Update(ctx, "/keys/a", []byte("2"), old, 0)
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		full, room := []string{"CREATE TRIGGER full_disk BEFORE INSERT ON kine FOR EACH ROW SIGNAL SQLSTATE 'HY000' SET MYSQL_ERRNO = 1021, MESSAGE_TEXT = 'disk full'"}, "DROP TRIGGER full_disk"
		if db.kind == "postgres" {
			full = []string{"CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'disk full' USING ERRCODE = '53100'; END $$",
				"CREATE TRIGGER full_disk BEFORE INSERT ON kine FOR EACH ROW EXECUTE FUNCTION full_disk()"}
			room += " ON kine"
		}
		other.run(full...)
		_, created := b.Create(ctx, "/keys/b", nil, 0)
		_, _, _, updated := b.Update(ctx, "/keys/a", nil, now, 0)
		_, _, _, deleted := b.Delete(ctx, "/keys/a", now)
		for _, err := range []error{created, updated, deleted} {
			if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "disk full") {
				t.Errorf("%v, want Unavailable", err)
			}
		}
		if _, kv, ok, err := b.Update(ctx, "/keys/a", nil, old, 0); ok || err != nil || kv == nil || string(kv.Value) != "2" {
			t.Errorf("an old revision: %+v, %v, %v, want a conflict", kv, ok, err)
		}
		if _, kv, ok, err := b.Delete(ctx, "/keys/none", now); ok || err != nil || kv != nil {
			t.Errorf("what never was: %+v, %v, %v", kv, ok, err)
		}
		expired := make(chan error, 1)
		go func() {
			_, _, _, err := leased{b}.Delete(ctx, "/keys/a", now)
			expired <- err
		}()
		select {
		case err := <-expired:
			t.Errorf("a lease is forgotten: %v", err)
		case <-time.After(100 * time.Millisecond):
		}
		other.run(room)
		if err := eventually.Receive(t, "the end of the lease", expired); err != nil {
			t.Error(err)
		}
		if _, there, err := list(ctx, b, 0); err != nil || len(there) != 0 {
			t.Errorf("%v, %v, want nothing", there, err)
		}
	})
}

// A write whose sender loses its lease while the write waits for a lock of the database is not written.
func TestDatabaseTakesAWriteBackThatWaitsForALock(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		a, b, other := db.started(t), db.started(t), db.foreign(t)
		take := func(unlock func()) {
			t.Helper()
			over := time.Now().Add(time.Second)
			leader := fence.With(t.Context(), func() (time.Duration, error) {
				if left := time.Until(over); left > 0 {
					return left, nil
				}
				return 0, errors.New("over")
			})
			late := make(chan error, 1)
			go func() { _, err := b.Create(leader, "/keys/late", nil, 0); late <- err }()
			time.Sleep(time.Until(over))
			unlock()
			if err := eventually.Receive(t, "an answer", late); status.Code(err) != codes.Canceled {
				t.Errorf("%v, want that it was taken back", err)
			}
			if _, keys, err := list(t.Context(), b, 0); err != nil || len(keys) > 0 {
				t.Errorf("%v, %v, want none", keys, err)
			}
		}
		take(a.holdLock(t))
		if db.kind == "postgres" {
			tx, err := other.db.Begin()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tx.Exec("LOCK TABLE kine IN EXCLUSIVE MODE"); err != nil {
				t.Fatal(err)
			}
			take(func() {
				if err := tx.Rollback(); err != nil {
					t.Error(err)
				}
			})
		}
		if _, err := b.Create(fence.With(t.Context(), func() (time.Duration, error) { return time.Second, nil }), "/keys/in-time", nil, 0); err != nil {
			t.Errorf("a write in time: %v", err)
		}
	})
}

// The new lease of a key is not forgotten with the old one.
func TestDatabaseRemembersALeaseThatWasRenewed(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b, ctx := db.started(t), t.Context()
		first, err := b.Create(ctx, "/keys/a", nil, 1000)
		if err != nil {
			t.Fatal(err)
		}
		renewed, _, ok, err := b.Update(ctx, "/keys/a", nil, first, 1000)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		if _, _, ok, err := (leased{b}).Delete(ctx, "/keys/a", first); ok || err != errRenewed {
			t.Errorf("%v, %v, want that the lease was renewed", ok, err)
		}
		if _, _, ok, err := (leased{b}).Delete(ctx, "/keys/a", renewed); !ok || err != nil {
			t.Errorf("%v, %v, want that the key is deleted", ok, err)
		}
		if _, _, ok, err := (leased{b}).Delete(ctx, "/keys/a", renewed); ok || err != nil {
			t.Errorf("%v, %v, want that nothing is left to do", ok, err)
		}
	})
}

// holdLock holds the lock for writes until unlock is called. The backend writes nothing meanwhile.
func (b *Backend) holdLock(t *testing.T) (unlock func()) {
	t.Helper()
	pool, take, give := (*sql.DB)(nil), "SELECT GET_LOCK("+mysqlLock+", 0)", strings.TrimPrefix(mysqlEnd, "; ")
	switch table := b.writer.table.(type) {
	case *mysqlTable:
		pool = table.db
	case *pgTable:
		pool = table.db
		take, give = fmt.Sprintf("SELECT 1 FROM pg_advisory_lock(%d)", pgLock), fmt.Sprintf("SELECT pg_advisory_unlock(%d)", pgLock)
	}
	holder, err := pool.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got int
	if err := holder.QueryRowContext(t.Context(), take).Scan(&got); err != nil || got != 1 {
		t.Fatalf("the lock: %d, %v", got, err)
	}
	return func() {
		t.Helper()
		if _, err := holder.ExecContext(t.Context(), give); err != nil {
			t.Fatal(err)
		}
		holder.Close()
	}
}

// counted counts the transactions of an inserter.
type counted struct {
	inserter
	n int
}

func (c *counted) insert(ctx context.Context, batch []*write, known int64) ([]int64, error) {
	c.n++
	return c.inserter.insert(ctx, batch, known)
}

// commitOf commits a batch, as if its writes had waited together.
func commitOf(w *writer, batch ...*write) {
	for _, one := range batch {
		one.answer = make(chan written, 1)
	}
	w.commit(batch)
}

// Where statements have a limit, a batch waits for a lock once, not once for each of its writes.
func TestDatabaseAStatementThatIsEndedFailsTheBatch(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		db.open(t) // makes the table
		limit, locks, unlock := "?statement_timeout=1s", []string{
			fmt.Sprintf("BEGIN; SELECT pg_advisory_xact_lock(%d)", pgLock), "BEGIN; LOCK TABLE kine IN EXCLUSIVE MODE"}, "ROLLBACK"
		if db.kind == "mysql" {
			limit, locks, unlock = "?max_statement_time=1", []string{"DO GET_LOCK(" + mysqlLock + ", 10)", "LOCK TABLES kine READ"}, "UNLOCK TABLES"
		}
		limited := db
		limited.endpoint += limit
		w := limited.open(t).writer
		table := &counted{inserter: w.table}
		w = newWriter(t.Context(), table)
		for _, lock := range locks {
			other, err := db.foreign(t).db.Conn(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := other.ExecContext(t.Context(), lock); err != nil {
				t.Fatal(err)
			}
			var batch []*write
			for range 8 {
				batch = append(batch, &write{ctx: t.Context(), key: "good"})
			}
			table.n = 0
			commitOf(w, batch...)
			for _, one := range batch {
				if got := eventually.Receive(t, "an answer", one.answer); got.err == nil || outcomeOf(got.err) != notCommitted {
					t.Errorf("%s: %+v, want a failure", lock, got)
				}
			}
			if table.n != 1 {
				t.Errorf("%s: %d transactions for a batch, want 1", lock, table.n)
			}
			if _, err := other.ExecContext(t.Context(), unlock); err != nil {
				t.Fatal(err)
			}
			other.Close()
		}
	})
}

// A key that a database cannot store is the caller's mistake, not an outage.
func TestDatabaseAKeyThatIsRefusedIsNoOutage(t *testing.T) {
	databases(t, func(t *testing.T, db database) {
		b := db.started(t)
		b.state = func(err error) { t.Errorf("told that the database is away: %v", err) }
		long := make([]byte, 4000) // an index compresses its entries
		rand.Read(long)
		keys := []string{"/keys/" + hex.EncodeToString(long)}
		if db.kind == "postgres" {
			keys = append(keys, "/keys/a\x00b", "/keys/not UTF-8 \xff")
		}
		if _, err := b.Create(t.Context(), "/keys/a", nil, 0); err != nil {
			t.Error(err)
		}
		for _, key := range keys {
			var good sync.WaitGroup // gets that wait are one query
			for range 4 * readQueries {
				good.Go(func() {
					if _, kv, err := b.Get(t.Context(), "/keys/a", 0, false); err != nil || kv == nil {
						t.Errorf("get of another key meanwhile: %v, %v", kv, err)
					}
				})
			}
			if _, err := b.Create(t.Context(), key, nil, 0); status.Code(err) != codes.InvalidArgument {
				t.Errorf("create %.20q: %v, want InvalidArgument", key, err)
			}
			if _, _, err := b.Get(t.Context(), key, 0, false); err != nil && status.Code(err) != codes.InvalidArgument {
				t.Errorf("get %.20q: %v, want no other error than InvalidArgument", key, err)
			}
			good.Wait()
		}
	})
}
