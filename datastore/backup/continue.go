package backup

import (
	"context"
	"database/sql/driver"
	"fmt"
	"maps"
	"time"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// RevisionMargin is how far the revision is raised when a store goes on with older data, above every
// revision that is known to have been given out. etcd's documentation recommends this number
// (https://etcd.io/docs/v3.6/op-guide/recovery/): it is more than a busy cluster writes in a week, if
// newer data are lost. A row id has space for 140,000 margins.
const RevisionMargin = 1_000_000_000

// restoresPerSecond is by how much more the revision is raised, for each second since restoresSince: data that are restored a second
// time go on above what the first restore has given out, unless that was more for each second in between. In the year 2126 this is
// 3.2e12, of a MaxRevision of 1.4e14. A machine without a clock has the margin alone.
const (
	restoresPerSecond = 1000
	restoresSince     = 1_735_689_600 // 2025
)

// Above returns the revision with which a store goes on that has older data, and whose clients may have seen revisions up to
// given.
func Above(given int64) int64 { return above(given, time.Now()) }

func above(given int64, now time.Time) int64 {
	revision := given + RevisionMargin
	later := revision + restoresPerSecond*max(0, now.Unix()-restoresSince)
	if later > sqlitefile.MaxRevision { // the clock is wrong
		return revision
	}
	return later
}

// Raise returns the meta rows with which the database goes on above every revision that clients may
// have seen: its own ones, and those up to seen. Everything before is compacted. A client that
// continues from a resourceVersion that was seen before must list again, and cannot mistake old state
// for new.
func (s *Summary) Raise(seen int64) (sqlitefile.Metas, error) {
	revision := Above(max(s.Revision, s.Metas["reserved"], seen))
	if revision > sqlitefile.MaxRevision {
		return nil, fmt.Errorf("%w: revision %d is too high to be raised", sqlitefile.ErrCorrupt, s.Revision)
	}
	return sqlitefile.Metas{"revision": revision, "compact_revision": revision, "reserved": 0, "resume": 0}, nil
}

// Resume returns the meta rows of a backup of a store that may have given out the revisions up to given. A start from it
// raises the revision ([Resumed]), even if somebody has copied the file into a data directory by hand.
func Resume(given int64) sqlitefile.Metas {
	return sqlitefile.Metas{"resume": min(given+RevisionMargin, sqlitefile.MaxRevision)}
}

// Resumed returns the revision with which a start from such a backup goes on, or 0 if metas are of no backup.
func Resumed(metas sqlitefile.Metas) int64 {
	if metas["resume"] == 0 {
		return 0
	}
	return min(Above(metas["resume"]-RevisionMargin), sqlitefile.MaxRevision)
}

// Continue makes a closed database, such as a backup, the beginning of another cluster. It raises
// the revision ([Summary.Raise]), and removes the keys for which drop returns true, with their
// history. more are other meta rows to set.
func Continue(ctx context.Context, path string, drop func(key string) bool, more sqlitefile.Metas) (err error) {
	if err := sqlitefile.View(path, func(c *sqlitefile.Connection) error { // refuses other files
		metas, err := c.Metas()
		if err != nil {
			return sqlitefile.Explain(path, err)
		}
		return sqlitefile.CheckStop(path, metas)
	}); err != nil {
		return err
	}
	_, err = rewrite(ctx, path, path, false, nil, func(c *sqlitefile.Connection, s *Summary) (sqlitefile.Metas, error) {
		metas, err := s.Raise(0)
		if err != nil {
			return nil, err
		}
		maps.Copy(metas, more)
		return metas, s.drop(c, drop)
	})
	return err
}

// drop deletes the rows of keys for which drop returns true.
func (s *Summary) drop(c *sqlitefile.Connection, drop func(key string) bool) error {
	var dropped []int64
	err := c.Query(`SELECT id, key FROM log`, func(row []driver.Value) error {
		id, _ := row[0].(int64)
		if key, _ := row[1].([]byte); drop(string(key)) {
			dropped = append(dropped, id)
		}
		return nil
	})
	for _, id := range dropped {
		if err == nil {
			err = c.Exec(`DELETE FROM log WHERE id = ?`, id)
		}
		s.rows--
		s.sum -= sqlitefile.RowSum(id)
	}
	return err
}
