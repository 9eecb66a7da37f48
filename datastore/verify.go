package datastore

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// FileStats are figures of a file, read without an engine.
type FileStats struct {
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

// ReadStats reads the figures of the engine's database at path. Beside a running server
// the error is [ErrBusy].
func ReadStats(ctx context.Context, path string) (*FileStats, error) {
	return readStats(ctx, fileOrigin(path))
}

// FileStats reads the figures of the engine's database. In mode Memory there is none.
func (e *Engine) FileStats(ctx context.Context) (*FileStats, error) {
	if e.disk == nil {
		return nil, errNoFile
	}
	return readStats(ctx, e.origin())
}

func readStats(ctx context.Context, from origin) (*FileStats, error) {
	var out FileStats
	path := from.path
	err := from.view(ctx, func(ctx context.Context, c *connection) error {
		s, err := scanLog(ctx, c, path, false, nil)
		if err != nil {
			return err
		}
		out = FileStats{
			Path: path, Revision: s.revision, CompactRevision: s.metas["compact_revision"],
			Keys: s.keys, LiveBytes: s.bytes, Rows: s.rows, Leases: s.leases, Clean: stopStateOf(s.metas).closed(),
		}
		if out.SchemaVersion, err = c.number("PRAGMA user_version"); err != nil {
			return explainSQL(path, err)
		}
		free, err := c.number("PRAGMA freelist_count")
		if err != nil {
			return explainSQL(path, err)
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
	out.WALBytes = (&disk{path: path}).walBytes()
	return &out, nil
}

// Verification is what a look at every page and row of a file found.
type Verification struct {
	Path     string   `json:"path"`
	OK       bool     `json:"ok"`
	Revision int64    `json:"revision"`
	Keys     int64    `json:"keys"`
	Rows     int64    `json:"rows"`
	Bytes    int64    `json:"bytes"` // of the file
	Problems []string `json:"problems,omitempty"`
}

// Err is ErrCorrupt with the first problem, or nil.
func (v *Verification) Err() error {
	if v.OK {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", ErrCorrupt, v.Path, v.Problems[0])
}

// Verify looks at the engine's database at path: SQLite's own check of its structure, the
// checksum of every row, and what always holds between rows. Nothing is changed. Damage is
// in the answer; the error is for a file that cannot be read, [ErrBusy] beside a running
// server, or is none of the engine's. progress may be nil.
func Verify(ctx context.Context, path string, progress Progress) (*Verification, error) {
	return verify(ctx, fileOrigin(path), progress)
}

// Verify does the same for the engine's own database while it is in use.
func (e *Engine) Verify(ctx context.Context, progress Progress) (*Verification, error) {
	if e.disk == nil {
		return nil, errNoFile
	}
	return verify(ctx, e.origin(), progress)
}

func verify(ctx context.Context, from origin, progress Progress) (*Verification, error) {
	var out *Verification
	path := from.path
	err := from.view(ctx, func(ctx context.Context, c *connection) error {
		out = &Verification{Path: path}
		err := c.query(`PRAGMA quick_check(20)`, func(row []driver.Value) error {
			if text, _ := row[0].(string); text != "ok" {
				out.Problems = append(out.Problems, text)
			}
			return nil
		})
		if err != nil {
			return explainSQL(path, err)
		}
		s, err := scanLog(ctx, c, path, true, progress)
		if err != nil {
			return err
		}
		out.Revision, out.Keys, out.Rows = s.revision, s.keys, s.rows
		out.Problems = append(out.Problems, s.problems...)
		if s.more > 0 {
			out.Problems = append(out.Problems, fmt.Sprintf("%d more", s.more))
		}
		if err := checkStop(path, s.metas); errors.Is(err, ErrCorrupt) {
			out.Problems = append(out.Problems, err.Error())
		} else if err != nil {
			return err
		}
		return nil
	})
	if err != nil {
		if out == nil || !errors.Is(err, ErrCorrupt) {
			return nil, err
		}
		out.Problems = append(out.Problems, err.Error())
	}
	if info, err := os.Stat(path); err == nil {
		out.Bytes = info.Size()
	}
	out.OK = len(out.Problems) == 0
	return out, nil
}

// checkStop looks at the log of a database that nobody has open and that was not
// closed in order, for the damage which a start would refuse and SQLite does not
// see.
func checkStop(path string, metas map[string]int64) error {
	state := stopStateOf(metas)
	if state.closed() || inUse(path) {
		return nil
	}
	err := checkStopped(path, state)
	if err != nil && inUse(path) {
		return nil // it was being started: what we saw is that
	}
	return err
}

// inUse tells whether a process holds the lock of the directory that path is the
// database of, or may hold it.
func inUse(path string) bool {
	_, held, err := Holder(filepath.Dir(path))
	return held || err != nil
}
