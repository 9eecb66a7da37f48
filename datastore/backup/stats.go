package backup

import (
	"context"
	"os"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// FileStats are figures of a file, read without an engine.
type Stats struct {
	Path            string `json:"path"`
	SchemaVersion   int64  `json:"schemaVersion"`
	Revision        int64  `json:"revision"`
	CompactRevision int64  `json:"compactRevision"`
	Keys            int64  `json:"keys"`      // keys that are there
	LiveBytes       int64  `json:"liveBytes"` // of those keys and their values
	Rows            int64  `json:"rows"`      // changes kept, those waiting for compaction included
	Leases          int64  `json:"leases"`
	FileBytes       int64  `json:"fileBytes"`
	FreeBytes       int64  `json:"freeBytes"` // of the file: to be written over, or given back
	WALBytes        int64  `json:"walBytes"`  // of the log beside the file
	Clean           bool   `json:"clean"`     // closed in order; false while a server runs
}

// ReadStats reads the figures of the engine's database.
func ReadStats(ctx context.Context, from sqlitefile.Source) (*Stats, error) {
	var out Stats
	path := from.Path()
	err := from.View(ctx, func(ctx context.Context, c *sqlitefile.Connection) error {
		s, err := Summarize(ctx, c, path, false, nil)
		if err != nil {
			return err
		}
		out = Stats{
			Path: path, Revision: s.Revision, CompactRevision: s.Metas["compact_revision"],
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
