//go:build !unix

package sqlitefile

// exclusiveVFS: there is none here, so other programs can use the database beside an
// engine, and the index of the log is a file.
const exclusiveVFS = ""

// lockless: there is none here, either.
const lockless = ""
