package external

import (
	"database/sql"
	"fmt"
	"time"

	"github.com/k3s-io/kine/pkg/drivers/generic"
	"github.com/k3s-io/kine/pkg/metrics"
	"github.com/k3s-io/kine/pkg/query"
)

// kine's code reads the columns by their place, and calls the seventh one lease.
const (
	columns      = "id, name, created, deleted, create_revision, prev_revision, " + leaseColumn
	withValue    = columns + ", value"
	withOldValue = withValue + ", old_value"
)

const (
	// getSQL reads the newest row of a key, with the newest revision. If there is no such row, there are nulls.
	// kine's own statement has four common table expressions, which a database plans for longer than it takes to
	// read the row. The second column is the compacted revision, for which kine does not ask here.
	getSQL = `
		SELECT current_rev, 0, %s
		FROM (SELECT MAX(id) AS current_rev FROM kine) AS newest
		LEFT JOIN kine AS kv ON kv.id = (SELECT MAX(id) FROM kine WHERE name = ?) AND (kv.deleted = 0 OR ?)`
	afterSQL = `
		WITH
		ckv AS (SELECT * FROM (%s) AS current_rev, (%s) AS compact_rev),
		mkv AS (SELECT %s FROM kine WHERE id > ?),
		fkv AS (SELECT * FROM mkv UNION ALL SELECT %s WHERE NOT EXISTS (SELECT * FROM mkv))
		SELECT * FROM ckv, fkv ORDER BY id ASC`
	countSQL   = `SELECT (%s), COUNT(id) FROM kine INNER JOIN (%s) AS mkv USING (id) WHERE (deleted = 0 OR ?)`
	countAtSQL = `SELECT (%s), (%s), COUNT(id) FROM kine INNER JOIN (%s) AS mkv USING (id) WHERE (deleted = 0 OR ?)`
	// compactedSQL is the rows that a compaction removes: those with a newer row of the same key, and deletions.
	compactedSQL = `(
			SELECT kp.prev_revision AS id FROM kine AS kp
			WHERE kp.name != '` + compactKey + `' AND kp.prev_revision != 0 AND kp.id > ? AND kp.id <= ?
			UNION ALL
			SELECT kd.id AS id FROM kine AS kd WHERE kd.deleted != 0 AND kd.id > ? AND kd.id <= ?
		) AS ks`
)

// newDialect returns the statements for Karve's table, which kine's code runs. They follow kine's (kine pkg/drivers), whose
// table has another name for the column of leases.
func newDialect(db *sql.DB, kind *driver) *generic.Generic {
	named := func(name, format string, parts ...any) *query.Named {
		return query.New(fmt.Sprintf(format, parts...), kind.param, kind.numbered, name)
	}
	list := func(name, format, ids, columns string) *query.Named {
		return named(name, format, ids, generic.CurrentRevSQL, generic.CompactRevSQL, columns, generic.Nulls(columns))
	}
	const at = "AND id <= ?"
	all, one := fmt.Sprintf(generic.AnyNameSQL, ""), fmt.Sprintf(generic.EqualsNameSQL, at)
	current, past := fmt.Sprintf(kind.rangeIDs, ""), fmt.Sprintf(kind.rangeIDs, at)
	return &generic.Generic{
		DB:                      db,
		GetSingleSQL:            named("GetSingle", getSQL, columns),
		GetSingleValSQL:         named("GetSingleVal", getSQL, withValue),
		AllCurrentSQL:           list("AllCurrent", generic.ListFmt, all, columns),
		AllCurrentValSQL:        list("AllCurrentVal", generic.ListFmt, all, withValue),
		ListCurrentSQL:          list("ListCurrent", kind.listSQL, current, columns),
		ListCurrentValSQL:       list("ListCurrentVal", kind.listSQL, current, withValue),
		ListRevisionStartSQL:    list("ListRevisionStart", generic.ListFmt, one, columns),
		ListRevisionStartValSQL: list("ListRevisionStartVal", generic.ListFmt, one, withValue),
		GetRevisionAfterSQL:     list("GetRevisionAfter", kind.listSQL, past, columns),
		GetRevisionAfterValSQL:  list("GetRevisionAfterVal", kind.listSQL, past, withValue),
		CountAllCurrentSQL:      named("CountAllCurrent", countSQL, generic.CurrentRevSQL, all),
		CountCurrentSQL:         named("CountCurrent", countSQL, generic.CurrentRevSQL, fmt.Sprintf(generic.BetweenNameSQL, "")),
		CountAllRevisionSQL: named("CountAllRevision", countAtSQL, generic.CurrentRevSQL, generic.CompactRevSQL,
			fmt.Sprintf(generic.AnyNameSQL, "WHERE id <= ?")),
		CountRevisionSQL: named("CountRevision", countAtSQL, generic.CurrentRevSQL, generic.CompactRevSQL,
			fmt.Sprintf(generic.BetweenNameSQL, at)),
		AfterAllOldValSQL: named("AfterAllOldVal", afterSQL, generic.CurrentRevSQL, generic.CompactRevSQL, withOldValue,
			generic.Nulls(withOldValue)),
		CurrentRevSQL:         named("CurrentRev", "%s", generic.CurrentRevSQL),
		CompactRevSQL:         named("CompactRev", "%s", generic.CompactRevSQL),
		UpdateCompactSQL:      named("UpdateCompact", "UPDATE kine SET prev_revision = ? WHERE name = '"+compactKey+"'"),
		CompactSQL:            named("Compact", kind.compactSQL, compactedSQL),
		GetSizeSQL:            named("GetSize", "%s", kind.sizeSQL),
		ErrCode:               errorCode,
		TranslateStartKeyFunc: kind.startKey,
	}
}

// errorCode is the database's code of an error, for kine's metrics.
func errorCode(err error) string {
	switch {
	case err == nil:
		return ""
	case code(err) != "":
		return code(err)
	case number(err) != 0:
		return fmt.Sprint(number(err))
	}
	return "other"
}

// observe counts one of this package's queries in kine's metrics.
func observe(began time.Time, err error, sql *query.Filled) {
	metrics.ObserveSQL(began, errorCode(err), 0, sql)
}
