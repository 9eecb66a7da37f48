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

// Record describes the last backup of a database, in a file beside the database.
type Record struct {
	Time     time.Time `json:"time"` // when the backup ended
	File     string    `json:"file"`
	Revision int64     `json:"revision"`
	Bytes    int64     `json:"bytes"`
}

func recordName(path string) string { return path + ".last-backup" }

// SetLast writes the record of a backup that ended now. The file is readable by all (0644), because
// one user may write it and another may read it, such as root's cron and the server's user. It has
// no secrets.
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

// Last returns the record of the last backup of the database at path, or nil if there is none.
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
