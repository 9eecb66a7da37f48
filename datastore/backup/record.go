package backup

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// BackupRecord is what is remembered, beside a database, of its last backup.
type Record struct {
	Time     time.Time `json:"time"` // of its end
	File     string    `json:"file"`
	Revision int64     `json:"revision"`
	Bytes    int64     `json:"bytes"`
}

func recordName(path string) string { return path + ".last-backup" }

// RecordBackup remembers, beside the database that it is of, that a backup was
// made at the time now. The file is not secret and may be written by another user
// than it is read by: root's cron and the server's own.
func SetLast(made *Result, now time.Time) error {
	text, err := json.Marshal(Record{Time: now.UTC().Truncate(time.Second), File: made.To, Revision: made.Revision, Bytes: made.Bytes})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(recordName(made.From), append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("record backup: %w", err)
	}
	return nil
}

// LastBackup is the newest backup of the database at path that [RecordBackup] was
// told of; nil if there was none.
func Last(path string) (*Record, error) {
	text, err := os.ReadFile(recordName(path))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read record of the last backup: %w", err)
	}
	var out Record
	if err := json.Unmarshal(text, &out); err != nil {
		return nil, fmt.Errorf("read record of the last backup %s: %w", recordName(path), err)
	}
	return &out, nil
}
