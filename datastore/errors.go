package datastore

import (
	"errors"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Errors of the engine. They are wrapped with detail: compare with errors.Is.
var (
	// ErrCompacted is the error for a revision older than the compaction revision.
	ErrCompacted = errors.New("revision has been compacted")

	// ErrFutureRevision is the error for a revision that does not exist yet.
	ErrFutureRevision = errors.New("revision is in the future")

	// ErrEmptyKey is the error for an empty key: a key has at least one byte.
	ErrEmptyKey = errors.New("key is empty")

	// ErrDuplicateKey is the error for a branch of a transaction that writes a key twice.
	ErrDuplicateKey = errors.New("key is written twice in one transaction")

	// ErrTooManyChanges is the error for a transaction with more than 65,536 changes.
	ErrTooManyChanges = errors.New("transaction changes too many keys")

	// ErrKeyNotFound is the error for a put that keeps the value or lease of a missing key.
	ErrKeyNotFound = errors.New("key not found")

	// ErrLeaseNotFound is the error for a lease that does not exist or has expired.
	ErrLeaseNotFound = errors.New("lease not found")

	// ErrLeaseExists is the error for the id of a lease that exists.
	ErrLeaseExists = errors.New("lease already exists")

	// ErrNoSpace is the error for a write that was not done because the disk is full. Reads, watches, deletes and
	// compaction still work. Puts work again by themselves once the disk has space.
	ErrNoSpace = directory.ErrNoSpace

	// ErrTakenBack is the error for a change that its sender has taken back before it was ordered (package fence).
	// It was not made.
	ErrTakenBack = errors.New("the sender has taken it back")

	// ErrCorrupt is the error for a damaged database.
	ErrCorrupt = sqlitefile.ErrCorrupt

	// ErrClosed is the error of an engine or a watcher that is closed or closing.
	ErrClosed = sqlitefile.ErrClosed

	// ErrUnknownOutcome is the error for a write during whose commit the disk failed. The write may or may not be
	// there after the next start. It must never be treated as a conflict. The engine refuses all further writes.
	ErrUnknownOutcome = errors.New("outcome of the write is unknown")
)

// errNoFile is the error for reading the database of an engine in mode Memory.
var errNoFile = errors.New("the datastore is in memory and has no file")

// errRetry is the error of a batch whose transactions have to be evaluated again: the state that they were evaluated
// against never became durable.
var errRetry = errors.New("evaluate again")
