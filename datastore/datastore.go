// Package datastore is the storage engine: etcd's data model (revisions,
// transactions, watches, leases, compaction) over one SQLite file,
// <data-dir>/mvcc.db, in a directory it locks. Begin with [OpenConverted];
// DESIGN.md has the decisions and what always holds.
package datastore

import "errors"

var (
	// ErrLocked: another process has the data directory open. The error that
	// wraps it names that process.
	ErrLocked = errors.New("data directory is in use")

	// ErrCorrupt: the file is not a database, or fails SQLite's own check or one
	// of ours.
	ErrCorrupt = errors.New("database is damaged")
)

// FileName is the name of the old database in a data directory: kine's table, of
// the first release of this project and of k3s. It is only read, to convert it.
const FileName = "state.db"
