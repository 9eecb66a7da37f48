package datastore

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// Look is what can be told of a file without reading all of it.
type Look struct {
	Path          string `json:"path"`
	SchemaVersion int64  `json:"schemaVersion"`
	Revision      int64  `json:"revision"`
	Bytes         int64  `json:"bytes"`    // of the file
	WALBytes      int64  `json:"walBytes"` // of the log beside it
}

// LookAt reads the few figures of the engine's database at path that need no
// scan. What a start would refuse by the file's header is an error here too:
// [ErrNewerSchema], [ErrForeign], [ErrCorrupt]; beside a running server it is [ErrBusy].
func LookAt(path string) (*Look, error) {
	out := &Look{Path: path}
	err := viewEngine(path, func(c *connection) error {
		metas, err := c.metas()
		if err != nil {
			return explainSQL(path, err)
		}
		last, err := c.number("SELECT ifnull(max(id), 0) FROM log")
		if err != nil {
			return explainSQL(path, err)
		}
		if out.SchemaVersion, err = c.number("PRAGMA user_version"); err != nil {
			return explainSQL(path, err)
		}
		out.Revision = max(1, metas["revision"], metas["compact_revision"], last>>subBits)
		return nil
	})
	if err != nil {
		return nil, err
	}
	out.Bytes, out.WALBytes = fileBytes(path), fileBytes(path+"-wal")
	return out, nil
}

// Err is [ErrNewerSchema] for a database that this release cannot open, or nil.
func (l *Look) Err() error {
	if l.SchemaVersion > schemaVersion {
		return newerSchema(l.Path, l.SchemaVersion)
	}
	return nil
}

// Look tells the same of the engine's own database, from memory.
func (e *Engine) Look() (*Look, error) {
	if e.disk == nil {
		return nil, errNoFile
	}
	return &Look{Path: e.path, SchemaVersion: schemaVersion, Revision: e.Revision(), Bytes: fileBytes(e.path), WALBytes: e.disk.walBytes()}, nil
}

// HasDatabase tells by the header of the file whether there is a database of the engine in a
// directory. The caller holds its lock, so that no server of this process has it open.
func HasDatabase(dir string) bool {
	f, err := os.Open(filepath.Join(dir, EngineFile))
	if err != nil {
		return false
	}
	defer f.Close()
	header := make([]byte, 100)
	if _, err := io.ReadFull(f, header); err != nil {
		return false
	}
	return binary.BigEndian.Uint32(header[68:]) == applicationID
}

// Holder tells whether a process holds the lock of a data directory, and which:
// pid is 0 if that is not known. A directory that is not there is held by nobody.
// Asking takes the lock for a moment where it is free, which [LockDir] waits for.
func Holder(dir string) (pid int, held bool, err error) {
	path := filepath.Join(dir, "lock")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	} else if err != nil {
		return 0, false, fmt.Errorf("look at lock of data directory: %w", err)
	}
	defer f.Close() // and with it the lock, if we have got it
	err = tryLock(f)
	if err == nil {
		return 0, false, nil
	} else if !errors.Is(err, errHeld) {
		return 0, false, fmt.Errorf("look at lock of data directory %s: %w", dir, err)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, true, nil
	}
	pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	return pid, true, nil
}

// BackupRecord is what is remembered, beside a database, of its last backup.
type BackupRecord struct {
	Time     time.Time `json:"time"` // of its end
	File     string    `json:"file"`
	Revision int64     `json:"revision"`
	Bytes    int64     `json:"bytes"`
}

func backupRecord(path string) string { return path + ".last-backup" }

// RecordBackup remembers, beside the database that it is of, that a backup was
// made at the time now. The file is not secret and may be written by another user
// than it is read by: root's cron and the server's own.
func RecordBackup(made *Copy, now time.Time) error {
	text, err := json.Marshal(BackupRecord{Time: now.UTC().Truncate(time.Second), File: made.To, Revision: made.Revision, Bytes: made.Bytes})
	if err != nil {
		return err
	}
	to := backupRecord(made.From)
	unfinished, err := newPartial(to)
	if err != nil {
		return fmt.Errorf("record backup: %w", err)
	}
	defer unfinished.remove()
	file, err := unfinished.file()
	if err == nil {
		err = os.WriteFile(file, append(text, '\n'), 0o600)
	}
	if err == nil {
		err = os.Chmod(file, 0o644)
	}
	if err == nil {
		err = GiveName(file, to, true)
	}
	if err != nil {
		return fmt.Errorf("record backup: %w", err)
	}
	return nil
}

// LastBackup is the newest backup of the database at path that [RecordBackup] was
// told of; nil if there was none.
func LastBackup(path string) (*BackupRecord, error) {
	text, err := os.ReadFile(backupRecord(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read record of the last backup: %w", err)
	}
	var out BackupRecord
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("read record of the last backup %s: %w", backupRecord(path), err)
	}
	return &out, nil
}
