//go:build !unix

package sqlitefile

// exclusiveVFS: there is none here, so other programs can use the database of a running engine, and
// the WAL-index is a file (-shm).
const exclusiveVFS = ""

// lockless: there is none here either.
const lockless = ""
