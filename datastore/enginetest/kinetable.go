package enginetest

import (
	"context"
	"database/sql"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
)

// KineTable writes kine's table as kine does (its pkg/drivers/generic: Insert,
// Fill; pkg/logstructured: Create, Update, Delete).
type KineTable struct {
	t  testing.TB
	DB *sql.DB
}

// NewKineTable makes the state.db of the version of this project before the engine,
// with what kine writes at its first start. close leaves it as a clean stop does.
func NewKineTable(t testing.TB, dir string) (w *KineTable, close func()) {
	t.Helper()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	w = &KineTable{t, openOldTable(t, dir)}
	w.Insert("compact_rev_key", true, false, 0, 0, 0, "")
	w.Create("/registry/health", `{"health":"true"}`, 0)
	return w, func() {
		w.DB.Close()
		lock.Close()
	}
}

func (w *KineTable) Exec(query string, args ...any) sql.Result {
	w.t.Helper()
	r, err := w.DB.Exec(query, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *KineTable) Insert(name string, created, deleted bool, create, prev, lease int64, value any) int64 {
	w.t.Helper()
	id, err := w.Exec(`INSERT INTO kine(name, created, deleted, create_revision, prev_revision, lease, value, old_value)
		SELECT ?, ?, ?, ?, ?, ?, ?, (SELECT value FROM kine WHERE id = ?)`,
		name, created, deleted, create, prev, lease, value, prev).LastInsertId()
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// newest is the last row of a key, and the revision that created it.
func (w *KineTable) newest(name string) (id, create int64) {
	w.t.Helper()
	var created bool
	if err := w.DB.QueryRow(`SELECT id, created, create_revision FROM kine WHERE name = ? ORDER BY id DESC`, name).Scan(&id, &created, &create); err != nil && err != sql.ErrNoRows {
		w.t.Fatal(err)
	}
	if created {
		create = id
	}
	return id, create
}

func (w *KineTable) Create(name, value string, ttl int64) int64 {
	w.t.Helper()
	prev, _ := w.newest(name)
	return w.Insert(name, true, false, 0, prev, ttl, []byte(value))
}

func (w *KineTable) Update(name, value string, ttl int64) int64 {
	w.t.Helper()
	prev, create := w.newest(name)
	return w.Insert(name, false, false, create, prev, ttl, []byte(value))
}

func (w *KineTable) Remove(name string) int64 {
	w.t.Helper()
	prev, _ := w.newest(name)
	return w.Insert(name, false, true, 0, prev, 0, nil)
}

// fill is the row that kine puts where a revision is missing.
func (w *KineTable) Fill() int64 {
	w.t.Helper()
	var id int64
	if err := w.DB.QueryRow(`SELECT MAX(id) + 1 FROM kine`).Scan(&id); err != nil {
		w.t.Fatal(err)
	}
	w.Exec(`INSERT INTO kine(id, name, created, deleted, create_revision, prev_revision, lease, value, old_value) VALUES(?,?,0,1,0,0,0,NULL,NULL)`,
		id, fmt.Sprintf("gap-%d", id))
	return id
}

func (w *KineTable) Compact(revision int64) {
	w.t.Helper()
	w.Exec(oldCompactSQL, revision, revision)
	w.Exec(`UPDATE kine SET prev_revision = ? WHERE name = 'compact_rev_key'`, revision)
}

// KineFixture is a table with one of everything, and the keys it must become.
func KineFixture(t testing.TB, dir string) (want map[string]datastore.KeyValue, revision int64) {
	t.Helper()
	w, done := NewKineTable(t, dir)
	defer done()
	want = map[string]datastore.KeyValue{}
	leases := int64(0) // in the order of the table
	expect := func(name, value string, create, mod, version, ttl int64) {
		kv := datastore.KeyValue{Key: name, Value: []byte(value), CreateRevision: create, ModRevision: mod, Version: version}
		if ttl > 0 {
			leases++
			kv.Lease = leases<<32 | ttl
		}
		want[name] = kv
	}
	// Its creation and first update will be compacted: kine does not know any
	// more that this is version 4.
	old := w.Create("/registry/old", "1", 0)
	w.Update("/registry/old", "2", 0)
	kept := w.Update("/registry/old", "3", 0)
	w.Create("/registry/buried", "x", 0)
	w.Remove("/registry/buried")
	w.Fill()
	w.Compact(kept + 3)
	mod := w.Update("/registry/old", "4", 0)
	expect("/registry/old", "4", old, mod, 3, 0)

	id := w.Create("/registry/new", "only", 0)
	expect("/registry/new", "only", id, id, 1, 0)
	w.Create("/registry/again", "first life", 0)
	w.Remove("/registry/again")
	id = w.Create("/registry/again", "1", 0)
	mod = w.Update("/registry/again", "\x00binary\xff", 0)
	expect("/registry/again", "\x00binary\xff", id, mod, 2, 0)
	id = w.Create("/registry/empty", "", 0)
	expect("/registry/empty", "", id, id, 1, 0)
	id = w.Create("/registry/events/a", "event", 3600)
	expect("/registry/events/a", "event", id, id, 1, 3600)
	id = w.Create("/registry/masterleases/1", "lease", 15)
	mod = w.Update("/registry/masterleases/1", "lease 2", 20)
	expect("/registry/masterleases/1", "lease 2", id, mod, 2, 20)
	w.Create("compact_rev_key_apiserver", "3|1000", 0)
	id = w.Create("gap-of-a-client", "v", 0) // no fill row: it is there
	expect("gap-of-a-client", "v", id, id, 1, 0)
	w.Fill()
	w.Create("/registry/gone", "x", 0)
	return want, w.Remove("/registry/gone")
}

// WantKeys compares all that is in an engine.
func WantKeys(t testing.TB, e *datastore.Engine, want map[string]datastore.KeyValue) {
	t.Helper()
	resp, err := e.Range(t.Context(), datastore.RangeRequest{Key: "\x00", End: "\x00"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]datastore.KeyValue{}
	for _, kv := range resp.KVs {
		got[kv.Key] = kv
	}
	for name, kv := range want {
		if fmt.Sprintf("%+v", got[name]) != fmt.Sprintf("%+v", kv) {
			t.Errorf("%s: got %+v, want %+v", name, got[name], kv)
		}
	}
	for name := range got {
		if _, ok := want[name]; !ok {
			t.Errorf("%s: want it not to be there", name)
		}
	}
}

// openOldTable opens or makes dir/state.db as the first release of this project
// did, which kept its state in kine's table.
func openOldTable(t testing.TB, dir string) *sql.DB {
	t.Helper()
	path := filepath.Join(dir, "state.db")
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	pragmas := url.Values{"_pragma": {"busy_timeout(30000)", "journal_mode(WAL)", "synchronous(FULL)"}, "_txlock": {"immediate"}}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: path, RawQuery: pragmas.Encode()}).String())
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range oldSchema {
		if _, err := db.ExecContext(context.Background(), statement); err != nil {
			t.Fatal(err)
		}
	}
	return db
}

// oldSchema is the layout kine reads and writes (github.com/k3s-io/kine
// pkg/drivers/sqlite), kept to the letter of its column names so that its
// queries work and so that a state.db of k3s has the same shape.
var oldSchema = []string{
	`CREATE TABLE IF NOT EXISTS kine (
		id              INTEGER PRIMARY KEY AUTOINCREMENT, -- the revision
		name            TEXT,
		created         INTEGER,
		deleted         INTEGER,
		create_revision INTEGER,
		prev_revision   INTEGER,
		lease           INTEGER,
		value           BLOB,
		old_value       BLOB
	)`,
	`CREATE INDEX IF NOT EXISTS kine_name_index ON kine (name)`,
	`CREATE INDEX IF NOT EXISTS kine_name_id_index ON kine (name, id)`,
	`CREATE INDEX IF NOT EXISTS kine_id_deleted_index ON kine (id, deleted)`,
	`CREATE INDEX IF NOT EXISTS kine_prev_revision_index ON kine (prev_revision)`,
	// This one is what makes a compare-and-swap: two writers that both saw
	// revision r of a key cannot both follow it.
	`CREATE UNIQUE INDEX IF NOT EXISTS kine_name_prev_revision_uindex ON kine (name, prev_revision)`,
}

// oldCompactSQL deletes, up to a revision given twice, every row that a later one
// replaced and every tombstone.
const oldCompactSQL = `
	DELETE FROM kine WHERE id IN (
		SELECT prev_revision FROM kine
		 WHERE name != 'compact_rev_key' AND prev_revision != 0 AND id <= ?
		UNION
		SELECT id FROM kine WHERE deleted != 0 AND id <= ?)`

// MakeForeign makes a database that is of another program.
func MakeForeign(path string) error {
	db, err := sql.Open("sqlite", path)
	if err != nil {
		return err
	}
	defer db.Close()
	_, err = db.Exec(`CREATE TABLE other (a)`)
	return err
}
