package datastore

// schema is the layout kine reads and writes (github.com/k3s-io/kine
// pkg/drivers/sqlite), kept to the letter of its column names so that its
// queries work and so that a state.db of k3s has the same shape.
var schema = []string{
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

// CompactSQL deletes, up to a revision given twice, every row that a later one
// replaced and every tombstone.
const CompactSQL = `
	DELETE FROM kine WHERE id IN (
		SELECT prev_revision FROM kine
		 WHERE name != 'compact_rev_key' AND prev_revision != 0 AND id <= ?
		UNION
		SELECT id FROM kine WHERE deleted != 0 AND id <= ?)`

// SizeSQL answers the bytes in use, free pages not counted.
const SizeSQL = `
	SELECT (page_count - freelist_count) * page_size
	  FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()`

// CheckpointSQL moves the log into the database. PASSIVE, because FULL waits
// for readers in modernc's busy handler and does not come back.
const CheckpointSQL = `PRAGMA wal_checkpoint(PASSIVE)`
