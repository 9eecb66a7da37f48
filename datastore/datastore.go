// Package datastore is the storage engine: etcd's data model (revisions,
// transactions, watches, leases, compaction) over one SQLite file,
// <data-dir>/mvcc.db, in a directory that it locks.
//
// A server begins with [github.com/karve-k8s/karve/datastore/admin.Open], which first finishes a
// restore that was stopped. DESIGN.md has the decisions, the rooms and what always holds.
package datastore

import "github.com/karve-k8s/karve/datastore/sqlitefile"

// EngineFile is the name of the engine's database in its directory.
const EngineFile = sqlitefile.FileName
