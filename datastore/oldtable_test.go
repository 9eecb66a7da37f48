package datastore

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"path/filepath"
	"testing"
)

// openOldTable opens or makes dir/state.db as the first release of this project
// did, which kept its state in kine's table.
func openOldTable(t testing.TB, dir string) *sql.DB {
	t.Helper()
	path := filepath.Join(dir, FileName)
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
