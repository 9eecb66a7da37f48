//go:build unix

package sqlitefile

// exclusiveVFS is SQLite's VFS that holds a lock on the whole database for as long as a
// connection of this process is open, and keeps the index of the log in memory that the
// connections share (https://sqlite.org/vfs.html#standard_unix_vfses). No other program
// can read, lock or checkpoint the database meanwhile, and there is no file -shm: a store
// into a mapped file that the disk has no room for would kill the process.
//
// It works only if the first connection of this process uses it, and its lock is gone
// when this process closes any other descriptor of the file: never open the database of a
// running engine but through SQLite.
const exclusiveVFS = "unix-excl"

// lockless is SQLite's VFS that takes no locks; with PRAGMA locking_mode=EXCLUSIVE, a
// connection then makes no file -shm either.
const lockless = "unix-none"
