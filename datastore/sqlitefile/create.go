package sqlitefile

import (
	"fmt"
	"os"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// applicationID is "Karv", in the header of the file.
const applicationID = 0x4b617276

// SchemaVersion is the version of the schema that this release writes.
const SchemaVersion = 1

// engineSchema are the tables. log is a rowid table: its id is the key of the B-tree itself, so a
// commit appends to one leaf. There is no other index.
var engineSchema = []string{
	`CREATE TABLE log (
		id              INTEGER PRIMARY KEY, -- revision << 16 | number of the change in it
		key             BLOB NOT NULL,
		flags           INTEGER NOT NULL,    -- 1: the key was deleted
		create_revision INTEGER NOT NULL,
		version         INTEGER NOT NULL,
		lease           INTEGER NOT NULL,
		crc             INTEGER NOT NULL,    -- CRC32C of all of the row
		value           BLOB
	)`,
	`CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID`,
	`CREATE TABLE lease (id INTEGER PRIMARY KEY, ttl INTEGER NOT NULL)`,
	`INSERT INTO meta (name, value) VALUES ('clean', 1), ('log_rows', 0), ('log_sum', 0)`,
}

// create makes the database under another name and renames it into place, so that the file never
// exists without its whole schema.
func create(path string) error {
	if _, err := os.Stat(path + "-wal"); err == nil {
		return fmt.Errorf("%w: %s is missing, but its WAL is there (restore a backup)", ErrCorrupt, path)
	}
	fresh := path + ".new"
	if err := makeFile(fresh); err != nil {
		return err
	}
	if err := atomicfile.Rename(fresh, path); err != nil {
		return fmt.Errorf("make database %s: %w", path, err)
	}
	return nil
}

// makeFile makes an empty database (0600) and closes it; it has no WAL beside it. It replaces what
// an earlier process has left under that name.
func makeFile(path string) error {
	if err := Remove(path); err != nil {
		return fmt.Errorf("make database: %w", err)
	}
	// SQLite would apply the umask only; the database holds every Secret.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make database: %w", err)
	}
	f.Close()
	c, err := Connect(path, nil)
	if err != nil {
		return Explain(path, err)
	}
	// The first two have an effect only before the others, which write the file.
	setup := []string{
		`PRAGMA page_size = 4096`,
		`PRAGMA auto_vacuum = INCREMENTAL`,
		`PRAGMA journal_mode = WAL`,
		`PRAGMA synchronous = FULL`,
		fmt.Sprintf(`PRAGMA application_id = %d`, applicationID),
		fmt.Sprintf(`PRAGMA user_version = %d`, SchemaVersion),
	}
	for _, statement := range append(setup, engineSchema...) {
		if err := c.Exec(statement); err != nil {
			c.Close()
			return Explain(path, err)
		}
	}
	if err := c.Close(); err != nil {
		return Explain(path, err)
	}
	return nil
}
