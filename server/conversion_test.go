package server_test

import (
	"database/sql"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/datastore/kineimport"
	"github.com/karve-k8s/karve/server"
)

// A data directory of the first release has kine's table. The start converts it, and what
// clients know about its objects stays valid.
func TestStateOfAnEarlierReleaseIsConverted(t *testing.T) {
	dir := t.TempDir()
	const key, object = "/registry/configmaps/default/kept", `{"apiVersion":"v1","kind":"ConfigMap",
		"metadata":{"name":"kept","namespace":"default","uid":"8d7c6a90-6d3c-4b52-9a39-b4f1c2b7d6aa"},"data":{"a":"b"}}`
	revision := writeKineTable(t, dir, key, object)

	c := start(t, func(c *server.Config) { c.DataDir, c.NoControllers, c.DisableScheduler = dir, true, true })
	got, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Data["a"] != "b" || got.ResourceVersion != strconv.FormatInt(revision, 10) {
		t.Errorf("got %v at %s, want a: b at %d", got.Data, got.ResourceVersion, revision)
	}
	got.Data["a"] = "c"
	next, err := c.CoreV1().ConfigMaps("default").Update(t.Context(), got, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := strconv.ParseInt(next.ResourceVersion, 10, 64); err != nil || n <= revision {
		t.Errorf("the next revision is %s, want more than %d", next.ResourceVersion, revision)
	}
	if _, err := os.Stat(filepath.Join(dir, kineimport.FileName+kineimport.ConvertedSuffix)); err != nil {
		t.Errorf("the old file is not kept: %v", err)
	}
}

// writeKineTable creates a database as kine would leave it, with one key, and returns the
// key's revision.
func writeKineTable(t *testing.T, dir, key, value string) (revision int64) {
	t.Helper()
	db, err := sql.Open("sqlite", // the driver comes with package datastore
		filepath.Join(dir, kineimport.FileName))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	const table = `CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created INTEGER, deleted INTEGER,
		create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)`
	if _, err := db.Exec(table); err != nil {
		t.Fatal(err)
	}
	const insert = `INSERT INTO kine(name, created, deleted, create_revision, prev_revision, lease, value) VALUES(?, 1, 0, 0, 0, 0, ?)`
	if _, err := db.Exec(insert, "compact_rev_key", []byte{}); err != nil {
		t.Fatal(err)
	}
	result, err := db.Exec(insert, key, []byte(value))
	if err != nil {
		t.Fatal(err)
	}
	if revision, err = result.LastInsertId(); err != nil {
		t.Fatal(err)
	}
	return revision
}
