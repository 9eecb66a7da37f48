package datastore

import (
	"bytes"
	"context"
	"database/sql/driver"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"runtime"

	"modernc.org/sqlite"
)

// EngineFile is the name of the engine's database inside the data directory.
// It is not [FileName], which has another program's table layout: conversion
// builds a whole new file and renames it into place, and the old one stays.
const EngineFile = "mvcc.db"

const (
	applicationID = 0x4b617276 // "Karv", in the header of the file
	schemaVersion = 1
)

// engineSchema: the log is a rowid table, so its id is the B-tree's own key and
// a commit appends to one leaf; there is no other index.
var engineSchema = []string{
	`CREATE TABLE log (
		id              INTEGER PRIMARY KEY, -- revision << 16 | number of the change in it
		key             BLOB NOT NULL,
		flags           INTEGER NOT NULL,    -- 1: the key was deleted
		create_revision INTEGER NOT NULL,
		version         INTEGER NOT NULL,
		lease           INTEGER NOT NULL,
		crc             INTEGER NOT NULL,    -- CRC32C of all of the row
		value           BLOB
	)`,
	`CREATE TABLE meta (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID`,
	`CREATE TABLE lease (id INTEGER PRIMARY KEY, ttl INTEGER NOT NULL)`,
	`INSERT INTO meta (name, value) VALUES ('clean', 1), ('log_rows', 0), ('log_sum', 0)`,
}

// meta is a row of the meta table. The names:
//
//	compact_revision  history up to it may be gone
//	revision          the store's revision is at least this
//	reserved          no revision up to it may be given out again after a crash
//	clean             how the last process left the database; see stopState
//	log_rows, log_sum number of rows and a sum over their ids, when clean
type meta struct {
	name  string
	value int64
}

// openDisk opens or makes the database. Nothing is written to a file that is
// refused.
func openDisk(path string, opts Options) (*disk, error) {
	d := &disk{path: path, vfs: exclusiveVFS, sealing: exclusiveVFS != "", onWait: opts.OnWait}
	if opts.shared {
		d.vfs, d.sealing = "", false
	}
	d.openState, d.sealState = inUseStates(opts.Durability)
	d.closed, d.endReads = context.WithCancel(context.Background())
	query := pragmas(opts.Durability)
	err := patiently(path, opts.busyPatience, opts.OnWait, func() (err error) {
		if err = d.inspect(schemaVersion); err == nil {
			d.writer, err = d.connect(query)
		}
		return err
	})
	if err != nil {
		return nil, explainSQL(path, err)
	}
	d.readers = make(chan *connection, readersMax)
	for range readersMax {
		c, err := d.connect(query)
		if err != nil {
			d.close(false)
			return nil, explainSQL(path, err)
		}
		d.readers <- c
		d.reading++
	}
	if d.vfs != "" {
		// Of a process that was killed: nobody has it open, and we make none.
		if err := os.Remove(path + "-shm"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			d.close(false)
			return nil, fmt.Errorf("open database: %w", err)
		}
	}
	return d, nil
}

// inspect looks at the file without SQLite, makes it if there is none, and
// refuses what must not be opened, or has a newer schema than that.
func (d *disk) inspect(newest int64) error {
	header := make([]byte, 100)
	f, err := os.Open(d.path)
	if errors.Is(err, fs.ErrNotExist) {
		return d.create()
	}
	if err != nil {
		return fmt.Errorf("open database: %w", err)
	}
	n, err := io.ReadFull(f, header)
	f.Close()
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read database: %w", err)
	}
	if n < len(header) || !bytes.HasPrefix(header, []byte("SQLite format 3\x00")) {
		return fmt.Errorf("%w: %s is not a database (%s)", ErrCorrupt, d.path, wayOut)
	}
	if id := binary.BigEndian.Uint32(header[68:]); id != applicationID {
		return fmt.Errorf("%w: %s has application id %#x", ErrForeign, d.path, id)
	}
	if v := int64(binary.BigEndian.Uint32(header[60:])); v > newest {
		return newerSchema(d.path, v)
	}
	if err := d.inspectLog(); err != nil || !hasLog(d.path) {
		return err
	}
	// A newer release that was killed may have said so in the log only. Whatever
	// else keeps it from being read is told by those who need it.
	if v, err := logSchema(d.path); err == nil && v > newest {
		return newerSchema(d.path, v)
	}
	return nil
}

// inspectLog compares what the database, read without its log, says of the last
// stop with the log that is there.
func (d *disk) inspectLog() error {
	c, err := d.connect(url.Values{"mode": {"ro"}, "immutable": {"1"}})
	if err != nil {
		return explainSQL(d.path, err)
	}
	defer c.close()
	value, err := c.number(`SELECT value FROM meta WHERE name = 'clean'`)
	if err != nil {
		// A checkpoint that a power loss tore: the log has the pages.
		return nil
	}
	state := stopState(value)
	d.copied = state.sealed() && !hasLog(d.path)
	return checkStopped(d.path, state)
}

// create makes the database under another name and renames it into place, so
// that the file exists only with its whole schema.
func (d *disk) create() error {
	if _, err := os.Stat(d.path + "-wal"); err == nil {
		return fmt.Errorf("%w: %s is missing, but its log is there (restore a backup)", ErrCorrupt, d.path)
	}
	fresh := d.path + ".new"
	if err := makeFile(fresh); err != nil {
		return err
	}
	err := os.Rename(fresh, d.path)
	if err == nil {
		err = SyncDir(filepath.Dir(d.path))
	}
	if err != nil {
		return fmt.Errorf("make database %s: %w", d.path, err)
	}
	return nil
}

// makeFile makes an empty database, mode 0600, over whatever a start before
// this one has left under that name. It is closed and has no log beside it.
func makeFile(path string) error {
	if err := removeFile(path); err != nil {
		return fmt.Errorf("make database: %w", err)
	}
	// SQLite would use the umask's mode; the state holds every Secret.
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return fmt.Errorf("make database: %w", err)
	}
	f.Close()
	c, err := (&disk{path: path}).connect(nil)
	if err != nil {
		return explainSQL(path, err)
	}
	// The first two only before anything else: the others begin the file.
	setup := []string{
		`PRAGMA page_size = 4096`,
		`PRAGMA auto_vacuum = INCREMENTAL`,
		`PRAGMA journal_mode = WAL`,
		`PRAGMA synchronous = FULL`,
		fmt.Sprintf(`PRAGMA application_id = %d`, applicationID),
		fmt.Sprintf(`PRAGMA user_version = %d`, schemaVersion),
	}
	for _, statement := range append(setup, engineSchema...) {
		if err := c.exec(statement); err != nil {
			c.close()
			return explainSQL(path, err)
		}
	}
	if err := c.close(); err != nil {
		return explainSQL(path, err)
	}
	return nil
}

// removeFile removes a database that was not finished, with what SQLite keeps
// beside it. One that is not there is no error.
func removeFile(path string) error {
	for _, suffix := range []string{"-wal", "-shm", "-journal", ""} {
		if err := os.Remove(path + suffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// quickCheck is SQLite's own check of the file's structure.
func (d *disk) quickCheck() error {
	found := ""
	err := d.writer.query(`PRAGMA quick_check(1)`, func(row []driver.Value) error {
		found, _ = row[0].(string)
		return nil
	})
	if err == nil && found != "ok" {
		return fmt.Errorf("%w: %s: %s (%s)", ErrCorrupt, d.path, found, wayOut)
	}
	if err != nil {
		return explainSQL(d.path, err)
	}
	return nil
}

func (d *disk) metas() (map[string]int64, error) { return d.writer.metas() }

// close waits for the readers and closes all connections. SQLite then leaves its
// log, which is the evidence of what was committed, unless the stop is clean: then
// the database alone is everything.
func (d *disk) close(clean bool) error {
	all := []*connection{d.writer}
	for range d.reading {
		all = append(all, <-d.readers)
	}
	close(d.readers)
	d.endLongReads()
	keep := 1
	if clean {
		keep = 0
	}
	var errs []error
	for _, c := range all {
		_, err := c.Conn.(sqlite.FileControl).FileControlPersistWAL("main", keep)
		errs = append(errs, err)
	}
	for _, c := range all {
		errs = append(errs, c.close())
	}
	if d.walFile != nil {
		errs = append(errs, d.walFile.Close())
	}
	return errors.Join(errs...)
}

// SyncDir makes a rename in dir durable; Windows has no such call and needs none.
func SyncDir(dir string) error {
	if runtime.GOOS == "windows" {
		return nil
	}
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer f.Close()
	return f.Sync() // its error names dir
}
