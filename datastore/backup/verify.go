package backup

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Verification is what Verify finds in a database.
type Verification struct {
	Path     string   `json:"path"`
	OK       bool     `json:"ok"`
	Revision int64    `json:"revision"`
	Keys     int64    `json:"keys"`
	Rows     int64    `json:"rows"`
	Bytes    int64    `json:"bytes"` // of the file
	Problems []string `json:"problems,omitempty"`
}

// Err returns ErrCorrupt with the first problem, or nil.
func (v *Verification) Err() error {
	if v.OK {
		return nil
	}
	return fmt.Errorf("%w: %s: %s", sqlitefile.ErrCorrupt, v.Path, v.Problems[0])
}

// Verify checks a database of the engine: its structure with SQLite's own check, the checksum of
// every row, and the invariants between rows. It changes nothing. Damage is part of the result. The
// error is for a file that cannot be read or is not the engine's. progress may be nil.
func Verify(ctx context.Context, from sqlitefile.Source, progress sqlitefile.Progress) (*Verification, error) {
	var out *Verification
	path := from.Path()
	err := from.View(ctx, func(ctx context.Context, c *sqlitefile.Connection) error {
		out = &Verification{Path: path}
		problems, err := c.QuickCheck(ctx, maxProblems)
		if ctx.Err() != nil {
			return ctx.Err()
		} else if err != nil {
			return sqlitefile.Explain(path, err)
		}
		out.Problems = problems
		s, err := Summarize(ctx, c, path, true, progress)
		if err != nil {
			return err
		}
		out.Revision, out.Keys, out.Rows = s.Revision, s.Keys, s.rows
		out.Problems = append(out.Problems, s.problems...)
		if s.more > 0 {
			out.Problems = append(out.Problems, fmt.Sprintf("%d more", s.more))
		}
		if err := sqlitefile.CheckStop(path, s.Metas); errors.Is(err, sqlitefile.ErrCorrupt) {
			out.Problems = append(out.Problems, err.Error())
		} else if err != nil {
			return err
		}
		return nil
	})
	if err != nil {
		if out == nil || !errors.Is(err, sqlitefile.ErrCorrupt) {
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
