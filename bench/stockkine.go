package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"sync"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/logstructured"
	"github.com/k3s-io/kine/pkg/logstructured/sqllog"
	"github.com/k3s-io/kine/pkg/query"
	"github.com/k3s-io/kine/pkg/server"
	"modernc.org/sqlite"
	sqlitelib "modernc.org/sqlite/lib"
)

const stockFile = "state.db"

// Stock kine, put together from its exported parts with what its own sqlite
// driver uses when it is built without cgo (kine pkg/drivers/sqlite, v0.16.4):
// the package itself would pick mattn's binding wherever cgo is on.
var (
	stockSchema = []string{
		`CREATE TABLE IF NOT EXISTS kine
			(
				id INTEGER PRIMARY KEY AUTOINCREMENT,
				name TEXT,
				created INTEGER,
				deleted INTEGER,
				create_revision INTEGER,
				prev_revision INTEGER,
				lease INTEGER,
				value BLOB,
				old_value BLOB
			)`,
		`CREATE INDEX IF NOT EXISTS kine_name_index ON kine (name)`,
		`CREATE INDEX IF NOT EXISTS kine_name_id_index ON kine (name,id)`,
		`CREATE INDEX IF NOT EXISTS kine_id_deleted_index ON kine (id,deleted)`,
		`CREATE INDEX IF NOT EXISTS kine_prev_revision_index ON kine (prev_revision)`,
		`CREATE UNIQUE INDEX IF NOT EXISTS kine_name_prev_revision_uindex ON kine (name, prev_revision)`,
		`CREATE INDEX IF NOT EXISTS kine_id_compact_rev_key_with_prev_revision_index ON kine(id, name, prev_revision) WHERE name != 'compact_rev_key' AND prev_revision != 0`,
		`PRAGMA wal_checkpoint(TRUNCATE)`,
	}

	stockSize = `
		SELECT (page_count - freelist_count) * page_size
		FROM pragma_page_count(), pragma_freelist_count(), pragma_page_size()`

	stockCompact = `
		DELETE FROM kine AS kv
		WHERE kv.id IN (
				SELECT kp.prev_revision AS id
				FROM kine AS kp
				WHERE
					kp.name != 'compact_rev_key' AND
					kp.prev_revision != 0 AND
					kp.id <= ?
				UNION
				SELECT kd.id AS id
				FROM kine AS kd
				WHERE
					kd.deleted != 0 AND
					kd.id <= ?)`
)

// openStockKine opens kine's SQL log in dir; synchronous is NORMAL, kine's
// default, or FULL. The log ends with ctx, and work then.
func openStockKine(ctx context.Context, work *sync.WaitGroup, dir, synchronous string) (server.Backend, error) {
	// kine's DefaultParams, as translateDSN gives them to modernc.
	params := url.Values{
		"_pragma": {"journal_mode(WAL)", "busy_timeout(30000)", "synchronous(" + synchronous + ")"},
		"_txlock": {"immediate"},
	}
	connector, err := sqlite.NewConnector("file://" + filepath.Join(dir, stockFile) + "?" + params.Encode())
	if err != nil {
		return nil, fmt.Errorf("prepare database: %w", err)
	}
	dialect, err := generic.OpenDB(ctx, work, "sqlite", connector, generic.ConnectionPoolConfig{}, "?", false, nil)
	if err != nil {
		return nil, fmt.Errorf("open database: %w", err)
	}
	dialect.LastInsertID = true
	dialect.GetSizeSQL = query.New(stockSize, "?", false, "GetSize")
	dialect.CompactSQL = query.New(stockCompact, "?", false, "Compact")
	dialect.PostCompactSQL = query.New(`PRAGMA wal_checkpoint(PASSIVE)`, "?", false, "PostCompactSQL")
	dialect.TranslateErr = func(err error) error {
		if e, ok := err.(*sqlite.Error); ok && e.Code() == sqlitelib.SQLITE_CONSTRAINT_UNIQUE {
			return server.ErrKeyExists
		}
		return err
	}
	dialect.ErrCode = func(err error) string {
		if e := (*sqlite.Error)(nil); errors.As(err, &e) {
			return sqlite.ErrorCodeString[e.Code()]
		}
		return ""
	}
	if err := makeStockSchema(dialect.DB, synchronous); err != nil {
		return nil, err
	}
	// What kine's own command passes by default (kine pkg/app).
	log := sqllog.New(dialect, 0, 0, stockCompactTimeout, 1000, 1000, 500)
	return logstructured.New(log), nil
}

// makeStockSchema makes the table, and checks that a commit is as durable as
// the column of the table says.
func makeStockSchema(db *sql.DB, synchronous string) error {
	for _, stmt := range stockSchema {
		if _, err := db.Exec(stmt); err != nil {
			return fmt.Errorf("make schema: %w", err)
		}
	}
	want := map[string]int{"NORMAL": 1, "FULL": 2}[synchronous]
	var got int
	if err := db.QueryRow(`PRAGMA synchronous`).Scan(&got); err != nil {
		return fmt.Errorf("read pragma synchronous: %w", err)
	}
	if got != want {
		return fmt.Errorf("pragma synchronous is %d, want %d", got, want)
	}
	return nil
}
