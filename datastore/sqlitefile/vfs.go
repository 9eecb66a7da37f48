package sqlitefile

// exclusiveVFS is the VFS of SQLite that locks the whole database as long as this process has a
// connection open, and keeps the WAL-index in memory that the connections share
// (https://sqlite.org/vfs.html#standard_unix_vfses). Meanwhile no other program can read, lock or
// checkpoint the database. There is no file -shm: if the disk had no space for a page of such a mapped
// file, a store into it would kill the process.
//
// It works only if the first connection of this process uses it. Its lock is gone when this process
// closes any other descriptor of the file, so only SQLite may open the database of a running engine.
const exclusiveVFS = "unix-excl"

// lockless is the VFS of SQLite that takes no locks. With PRAGMA locking_mode=EXCLUSIVE, a connection
// then makes no file -shm either.
const lockless = "unix-none"
