package datastore

import (
	"errors"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Errors of the engine. They are wrapped with detail: compare with errors.Is.
var (
	// ErrCompacted: the revision asked for is older than the compaction
	// revision, so its history is gone.
	ErrCompacted = errors.New("revision has been compacted")

	// ErrFutureRevision: the revision asked for has not happened yet.
	ErrFutureRevision = errors.New("revision is in the future")

	// ErrEmptyKey: a key must have at least one byte.
	ErrEmptyKey = errors.New("key is empty")

	// ErrDuplicateKey: one branch of a transaction writes a key twice.
	ErrDuplicateKey = errors.New("key is written twice in one transaction")

	// ErrTooManyChanges: one revision cannot hold more than 65,536 changes.
	ErrTooManyChanges = errors.New("transaction changes too many keys")

	// ErrKeyNotFound: a put that keeps the value or lease of its key needs
	// the key to be there.
	ErrKeyNotFound = errors.New("key not found")

	// ErrLeaseNotFound: there is no such lease, or it has expired.
	ErrLeaseNotFound = errors.New("lease not found")

	// ErrLeaseExists: a lease with the id asked for is already granted.
	ErrLeaseExists = errors.New("lease already exists")

	// ErrNoSpace: the write was not done because the disk is full. Reads, watches, deletes
	// and compaction go on; puts work again by themselves once there is room.
	ErrNoSpace = directory.ErrNoSpace

	// ErrCorrupt: the database is damaged.
	ErrCorrupt = sqlitefile.ErrCorrupt

	// ErrClosed: the engine is closed or closing.
	ErrClosed = sqlitefile.ErrClosed

	// ErrUnknownOutcome: the disk failed while a batch was being committed. The
	// write may or may not be there after the next start; it is never right
	// to treat it as a conflict. The engine takes no write after it.
	ErrUnknownOutcome = errors.New("outcome of the write is unknown")
)

// errNoFile: an engine in mode Memory has no database to look at.
var errNoFile = errors.New("the datastore is in memory and has no file")

// errRetry tells a caller inside the package to evaluate its transaction again:
// the state it was compared against never became durable.
var errRetry = errors.New("evaluate again")
