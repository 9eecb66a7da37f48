package backup_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
)

func TestLastBackup(t *testing.T) {
	path := filepath.Join(t.TempDir(), datastore.EngineFile)
	if got, err := backup.Last(path); got != nil || err != nil {
		t.Errorf("before the first: got %+v, %v, want nothing", got, err)
	}
	now := time.Date(2027, 3, 4, 5, 6, 7, 8, time.UTC)
	for revision := range int64(2) { // the second replaces the first
		if err := backup.SetLast(&backup.Result{From: path, To: "/backups/a.db", Revision: revision, Bytes: 4096}, now); err != nil {
			t.Fatal(err)
		}
	}
	got, err := backup.Last(path)
	if want := (backup.Record{now.Truncate(time.Second), "/backups/a.db", 1, 4096}); err != nil || *got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("left behind: %v, want the record only", entries)
	}
	if err := os.WriteFile(path+".last-backup", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got, err := backup.Last(path); err == nil {
		t.Errorf("a damaged record: got %+v, want an error", got)
	}
}
