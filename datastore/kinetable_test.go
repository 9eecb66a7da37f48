package datastore

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"testing"
)

// kineWriter writes kine's table as kine does (its pkg/drivers/generic: Insert,
// Fill; pkg/logstructured: Create, Update, Delete).
type kineWriter struct {
	t  testing.TB
	db *sql.DB
}

// newKineTable makes the state.db of the version of this project before the engine,
// with what kine writes at its first start. close leaves it as a clean stop does.
func newKineTable(t testing.TB, dir string) (w *kineWriter, close func()) {
	t.Helper()
	lock, err := LockDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	w = &kineWriter{t, openOldTable(t, dir)}
	w.insert(kineCompactKey, true, false, 0, 0, 0, "")
	w.create(kineHealthKey, kineHealthValue, 0)
	return w, func() {
		w.db.Close()
		lock.Close()
	}
}

func (w *kineWriter) exec(query string, args ...any) sql.Result {
	w.t.Helper()
	r, err := w.db.Exec(query, args...)
	if err != nil {
		w.t.Fatal(err)
	}
	return r
}

func (w *kineWriter) insert(name string, created, deleted bool, create, prev, lease int64, value any) int64 {
	w.t.Helper()
	id, err := w.exec(`INSERT INTO kine(name, created, deleted, create_revision, prev_revision, lease, value, old_value)
		SELECT ?, ?, ?, ?, ?, ?, ?, (SELECT value FROM kine WHERE id = ?)`,
		name, created, deleted, create, prev, lease, value, prev).LastInsertId()
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// newest is the last row of a key, and the revision that created it.
func (w *kineWriter) newest(name string) (id, create int64) {
	w.t.Helper()
	var created bool
	if err := w.db.QueryRow(`SELECT id, created, create_revision FROM kine WHERE name = ? ORDER BY id DESC`, name).Scan(&id, &created, &create); err != nil && err != sql.ErrNoRows {
		w.t.Fatal(err)
	}
	if created {
		create = id
	}
	return id, create
}

func (w *kineWriter) create(name, value string, ttl int64) int64 {
	w.t.Helper()
	prev, _ := w.newest(name)
	return w.insert(name, true, false, 0, prev, ttl, []byte(value))
}

func (w *kineWriter) update(name, value string, ttl int64) int64 {
	w.t.Helper()
	prev, create := w.newest(name)
	return w.insert(name, false, false, create, prev, ttl, []byte(value))
}

func (w *kineWriter) remove(name string) int64 {
	w.t.Helper()
	prev, _ := w.newest(name)
	return w.insert(name, false, true, 0, prev, 0, nil)
}

// fill is the row that kine puts where a revision is missing.
func (w *kineWriter) fill() int64 {
	w.t.Helper()
	var id int64
	if err := w.db.QueryRow(`SELECT MAX(id) + 1 FROM kine`).Scan(&id); err != nil {
		w.t.Fatal(err)
	}
	w.exec(`INSERT INTO kine(id, name, created, deleted, create_revision, prev_revision, lease, value, old_value) VALUES(?,?,0,1,0,0,0,NULL,NULL)`,
		id, fmt.Sprintf("gap-%d", id))
	return id
}

func (w *kineWriter) compact(revision int64) {
	w.t.Helper()
	w.exec(oldCompactSQL, revision, revision)
	w.exec(`UPDATE kine SET prev_revision = ? WHERE name = 'compact_rev_key'`, revision)
}

// kineFixture is a table with one of everything, and the keys it must become.
func kineFixture(t testing.TB, dir string) (want map[string]KeyValue, revision int64) {
	t.Helper()
	w, done := newKineTable(t, dir)
	defer done()
	want = map[string]KeyValue{}
	leases := int64(0) // in the order of the table
	expect := func(name, value string, create, mod, version, ttl int64) {
		kv := KeyValue{Key: name, Value: []byte(value), CreateRevision: create, ModRevision: mod, Version: version}
		if ttl > 0 {
			leases++
			kv.Lease = leases<<32 | ttl
		}
		want[name] = kv
	}
	// Its creation and first update will be compacted: kine does not know any
	// more that this is version 4.
	old := w.create("/registry/old", "1", 0)
	w.update("/registry/old", "2", 0)
	kept := w.update("/registry/old", "3", 0)
	w.create("/registry/buried", "x", 0)
	w.remove("/registry/buried")
	w.fill()
	w.compact(kept + 3)
	mod := w.update("/registry/old", "4", 0)
	expect("/registry/old", "4", old, mod, 3, 0)

	id := w.create("/registry/new", "only", 0)
	expect("/registry/new", "only", id, id, 1, 0)
	w.create("/registry/again", "first life", 0)
	w.remove("/registry/again")
	id = w.create("/registry/again", "1", 0)
	mod = w.update("/registry/again", "\x00binary\xff", 0)
	expect("/registry/again", "\x00binary\xff", id, mod, 2, 0)
	id = w.create("/registry/empty", "", 0)
	expect("/registry/empty", "", id, id, 1, 0)
	id = w.create("/registry/events/a", "event", 3600)
	expect("/registry/events/a", "event", id, id, 1, 3600)
	id = w.create("/registry/masterleases/1", "lease", 15)
	mod = w.update("/registry/masterleases/1", "lease 2", 20)
	expect("/registry/masterleases/1", "lease 2", id, mod, 2, 20)
	w.create("compact_rev_key_apiserver", "3|1000", 0)
	id = w.create("gap-of-a-client", "v", 0) // no fill row: it is there
	expect("gap-of-a-client", "v", id, id, 1, 0)
	w.fill()
	w.create("/registry/gone", "x", 0)
	return want, w.remove("/registry/gone")
}

// wantKeys compares all that is in an engine.
func wantKeys(t testing.TB, e *Engine, want map[string]KeyValue) {
	t.Helper()
	resp, err := e.Range(t.Context(), RangeRequest{Key: "\x00", End: "\x00"})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]KeyValue{}
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

func glob(t testing.TB, dir, pattern string) []string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(dir, pattern))
	if err != nil {
		t.Fatal(err)
	}
	return names
}
