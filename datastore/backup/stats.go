package backup

import (
	"context"
	"os"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Stats are the figures of a database.
type Stats struct {
	Path            string `json:"path"`
	SchemaVersion   int64  `json:"schemaVersion"`
	Revision        int64  `json:"revision"`
	CompactRevision int64  `json:"compactRevision"`
	Keys            int64  `json:"keys"`      // live keys
	LiveBytes       int64  `json:"liveBytes"` // of the live keys and their values
	Rows            int64  `json:"rows"`      // rows of the log table, including those that compaction has yet to delete
	Leases          int64  `json:"leases"`
	FileBytes       int64  `json:"fileBytes"`
	FreeBytes       int64  `json:"freeBytes"` // free pages of the file
	WALBytes        int64  `json:"walBytes"`  // of the WAL beside the file
	Clean           bool   `json:"clean"`     // closed in order; false while a server runs
}

// ReadStats reads all rows of a database of the engine and returns its figures.
func ReadStats(ctx context.Context, from sqlitefile.Source) (*Stats, error) {
	var out Stats
	path := from.Path()
	err := from.View(ctx, func(ctx context.Context, c *sqlitefile.Connection) error {
		s, err := Summarize(ctx, c, path, false, nil)
		if err != nil {
			return err
		}
		out = Stats{
			Path: path, Revision: s.Revision, CompactRevision: s.Metas.Compacted(),
			Keys: s.Keys, LiveBytes: s.bytes, Rows: s.rows, Leases: s.leases, Clean: s.Metas.Closed(),
		}
		if out.SchemaVersion, err = c.Number("PRAGMA user_version"); err != nil {
			return sqlitefile.Explain(path, err)
		}
		free, err := c.Number("PRAGMA freelist_count")
		if err != nil {
			return sqlitefile.Explain(path, err)
		}
		out.FreeBytes = free * 4096
		return nil
	})
	if err != nil {
		return nil, err
	}
	if info, err := os.Stat(path); err == nil {
		out.FileBytes = info.Size()
	}
	out.WALBytes = sqlitefile.Size(path + "-wal")
	return &out, nil
}
