package enginetest

import (
	"database/sql"
	"fmt"
	"net/url"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/datastore"
)

// KineRow is a row of kine's table (github.com/k3s-io/kine pkg/drivers/sqlite). Its value may be nil.
type KineRow struct {
	ID               int64 // the revision
	Name             string
	Created, Deleted bool
	Create, Prev     int64 // revisions
	TTL              int64
	Value            any
}

// KineTable makes the file dir/state.db with kine's table, and the rows with which kine begins: its compaction revision and
// its own key. The last rows are in the WAL until the database is closed.
func KineTable(t testing.TB, dir string, compacted int64, rows ...KineRow) *sql.DB {
	t.Helper()
	pragmas := url.Values{"_pragma": {"busy_timeout(30000)", "journal_mode(WAL)", "synchronous(FULL)"}, "_txlock": {"immediate"}}
	db, err := sql.Open("sqlite", (&url.URL{Scheme: "file", Path: filepath.Join(dir, "state.db"), RawQuery: pragmas.Encode()}).String())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Exec(`CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created INTEGER, deleted INTEGER,
		create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)`); err != nil {
		t.Fatal(err)
	}
	first := []KineRow{
		{ID: 1, Name: "compact_rev_key", Created: true, Prev: compacted, Value: ""},
		{ID: 2, Name: "/registry/health", Created: true, Value: []byte(`{"health":"true"}`)},
	}
	for _, r := range append(first, rows...) {
		AddKineRow(t, db, r)
	}
	return db
}

// AddKineRow inserts a row.
func AddKineRow(t testing.TB, db *sql.DB, r KineRow) {
	t.Helper()
	if text, ok := r.Value.(string); ok {
		r.Value = []byte(text)
	}
	_, err := db.Exec(`INSERT INTO kine(id, name, created, deleted, create_revision, prev_revision, lease, value) VALUES (?, ?, ?, ?, ?, ?, ?, ?)`,
		r.ID, r.Name, r.Created, r.Deleted, r.Create, r.Prev, r.TTL, r.Value)
	if err != nil {
		t.Fatal(err)
	}
}

// KineFixture makes a table with one of everything, and returns the keys that it must become. Rows before revision 8 are
// compacted.
func KineFixture(t testing.TB, dir string) (want map[string]datastore.KeyValue, revision int64) {
	t.Helper()
	db := KineTable(t, dir, 8,
		KineRow{ID: 5, Name: "/registry/old", Create: 3, Prev: 4, Value: "3"}, // that this is version 3 is compacted
		KineRow{ID: 9, Name: "/registry/old", Create: 3, Prev: 5, Value: "4"},
		KineRow{ID: 10, Name: "/registry/new", Created: true, Value: "only"},
		KineRow{ID: 11, Name: "/registry/again", Created: true, Value: "first life"},
		KineRow{ID: 12, Name: "/registry/again", Deleted: true, Prev: 11},
		KineRow{ID: 13, Name: "/registry/again", Created: true, Prev: 12, Value: "1"},
		KineRow{ID: 14, Name: "/registry/again", Create: 13, Prev: 13, Value: "\x00binary\xff"},
		KineRow{ID: 15, Name: "/registry/empty", Created: true, Value: ""},
		KineRow{ID: 16, Name: "/registry/events/a", Created: true, TTL: 3600, Value: "event"},
		KineRow{ID: 17, Name: "/registry/masterleases/1", Created: true, TTL: 15, Value: "lease"},
		KineRow{ID: 18, Name: "/registry/masterleases/1", Create: 17, Prev: 17, TTL: 20, Value: "lease 2"},
		KineRow{ID: 19, Name: "compact_rev_key_apiserver", Created: true, Value: "3|1000"},
		KineRow{ID: 20, Name: "gap-of-a-client", Created: true, Value: "v"}, // a key
		KineRow{ID: 21, Name: "gap-21", Deleted: true},                      // kine puts such a row where a revision is missing
		KineRow{ID: 22, Name: "/registry/gone", Created: true, Value: "x"},
		KineRow{ID: 23, Name: "/registry/gone", Deleted: true, Prev: 22})
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	want = map[string]datastore.KeyValue{}
	for _, kv := range []datastore.KeyValue{
		{Key: "/registry/old", Value: []byte("4"), CreateRevision: 3, ModRevision: 9, Version: 3},
		{Key: "/registry/new", Value: []byte("only"), CreateRevision: 10, ModRevision: 10, Version: 1},
		{Key: "/registry/again", Value: []byte("\x00binary\xff"), CreateRevision: 13, ModRevision: 14, Version: 2},
		{Key: "/registry/empty", Value: []byte{}, CreateRevision: 15, ModRevision: 15, Version: 1},
		{Key: "/registry/events/a", Value: []byte("event"), CreateRevision: 16, ModRevision: 16, Version: 1, Lease: 1<<32 | 3600},
		{Key: "/registry/masterleases/1", Value: []byte("lease 2"), CreateRevision: 17, ModRevision: 18, Version: 2, Lease: 2<<32 | 20},
		{Key: "gap-of-a-client", Value: []byte("v"), CreateRevision: 20, ModRevision: 20, Version: 1},
	} {
		want[kv.Key] = kv
	}
	return want, 23
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
