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

// Failure describes why the server's last scheduled backup failed, in a file beside the database.
type Failure struct {
	Time    time.Time `json:"time"`
	Problem string    `json:"problem"`
}

func failureName(path string) string { return path + ".backup-failure" }

// SetFailure writes the record of a backup that failed now. Without a problem, it removes the record.
func SetFailure(path string, problem error, now time.Time) error {
	if problem == nil {
		if err := os.Remove(failureName(path)); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	text, err := json.Marshal(Failure{Time: now.UTC().Truncate(time.Second), Problem: problem.Error()})
	if err != nil {
		return err
	}
	return atomicfile.Write(failureName(path), append(text, '\n'), 0o600)
}

// LastFailure returns the record of [SetFailure], or nil if there is none.
func LastFailure(path string) (*Failure, error) { return read[Failure](failureName(path)) }

func recordName(path string) string { return path + ".last-backup" }

// SetLast writes the record of a backup that ended now. Call it as the owner of the database, whose server reads the
// record.
func SetLast(made *Result, now time.Time) error {
	text, err := json.Marshal(Record{Time: now.UTC().Truncate(time.Second), File: made.To, Revision: made.Revision, Bytes: made.Bytes})
	if err != nil {
		return err
	}
	if err := atomicfile.Write(recordName(made.From), append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("record backup: %w", err)
	}
	return nil
}

// Last returns the record of the last backup of the database at path, or nil if there is none.
func Last(path string) (*Record, error) { return read[Record](recordName(path)) }

func read[T any](name string) (*T, error) {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, fmt.Errorf("read record of the last backup: %w", err)
	}
	out := new(T)
	if err := json.Unmarshal(text, out); err != nil {
		return nil, fmt.Errorf("read record of the last backup %s: %w", name, err)
	}
	return out, nil
}
