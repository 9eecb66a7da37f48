package backup_test

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/enginetest"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

func TestReadStats(t *testing.T) {
	dir := enginetest.Written(t, true)
	path := filepath.Join(dir, datastore.EngineFile)
	before, _ := os.ReadFile(path)
	s, err := backup.ReadStats(t.Context(), sqlitefile.ClosedFile(path))
	if err != nil {
		t.Fatal(err)
	}
	live := int64(0)
	for i := 200; i < 300; i++ {
		live += int64(len("/k/000") + 100*len(fmt.Sprint(i)))
	}
	want := backup.Stats{
		Path: path, SchemaVersion: 1, Revision: 301, Keys: 100, LiveBytes: live, Rows: 300,
		FileBytes: int64(len(before)), FreeBytes: s.FreeBytes, Clean: true,
	}
	if *s != want {
		t.Errorf("got %+v, want %+v", *s, want)
	}
	// A server of another release sends these names.
	const names = `{"path":"","schemaVersion":1,"revision":2,"compactRevision":3,"keys":4,"liveBytes":5,"rows":6,"leases":7,"fileBytes":8,"freeBytes":9,"walBytes":10,"clean":true}`
	if got, err := json.Marshal(backup.Stats{"", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, true}); err != nil || string(got) != names {
		t.Errorf("in JSON: %s, %v; want %s", got, err, names)
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) || len(enginetest.Glob(t, dir, "*")) != 2 {
		t.Errorf("the directory was changed: %v", enginetest.Glob(t, dir, "*"))
	}
	if _, err := backup.ReadStats(t.Context(), sqlitefile.ClosedFile(filepath.Join(dir, "none"))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a missing file: %v, want fs.ErrNotExist", err)
	}
}

// Damage that the engine refuses, and damage that only shows between rows.
func TestVerifyFindsDamage(t *testing.T) {
	edit := func(query string) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if _, err := db.Exec(query); err != nil {
				t.Fatal(err)
			}
		}
	}
	// resum writes a row with a checksum that fits.
	resum := func(at int64, change func(v *sqlitefile.Row)) func(t *testing.T, path string) {
		return func(t *testing.T, path string) {
			v := &sqlitefile.Row{ID: sqlitefile.RowID(at, 0)}
			c, err := sqlitefile.Connect(path, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			db, err := sql.Open("sqlite", path)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			var value []byte
			if err := db.QueryRow(`SELECT key, create_revision, version, lease, value FROM log WHERE id = ?`, v.ID).Scan(&v.Key, &v.Create, &v.Version, &v.Lease, &value); err != nil {
				t.Fatal(err)
			}
			change(v)
			if _, err := db.Exec(`UPDATE log SET create_revision = ?, version = ?, lease = ?, crc = ? WHERE id = ?`, v.Create, v.Version, v.Lease, v.Checksum(value), v.ID); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, c := range []struct {
		name   string
		damage func(t *testing.T, path string)
		want   string
	}{
		{"value", edit(`UPDATE log SET value = 'x' WHERE id = 250 << 16`), fmt.Sprintf("row %d (revision 250) has a bad checksum", sqlitefile.RowID(250, 0))},
		{"row missing", edit(`DELETE FROM log WHERE id = 250 << 16`), "299 rows, and the last stop left 300"},
		{"version", resum(250, func(v *sqlitefile.Row) { v.Version = 7 }), "is version 7 after version 2"},
		{"creation", resum(250, func(v *sqlitefile.Row) { v.Create = 400 }), "created in revision 400"},
		{"lease", resum(250, func(v *sqlitefile.Row) { v.Lease = 5 }), `has lease 5, which does not exist`},
		{"page", func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if _, err := f.WriteAt(make([]byte, 4096), 9*4096); err != nil {
				t.Fatal(err)
			}
		}, ""},
		{"WAL missing", func(t *testing.T, path string) {
			edit(`UPDATE meta SET value = 0 WHERE name = 'clean'`)(t, path)
			os.Remove(path + "-wal")
		}, "its WAL"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(enginetest.Written(t, true), datastore.EngineFile)
			c.damage(t, path)
			v, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(path), nil)
			if err != nil {
				t.Fatal(err)
			}
			if v.OK || !strings.Contains(strings.Join(v.Problems, "\n"), c.want) || !errors.Is(v.Err(), sqlitefile.ErrCorrupt) {
				t.Errorf("got %+v, want a problem %q", v, c.want)
			}
			if _, err := backup.Write(t.Context(), sqlitefile.ClosedFile(path), filepath.Join(t.TempDir(), "b")); !errors.Is(err, sqlitefile.ErrCorrupt) {
				t.Errorf("backup: %v, want ErrCorrupt", err)
			}
		})
	}
	path := filepath.Join(t.TempDir(), "other.db")
	if err := enginetest.MakeForeign(path); err != nil {
		t.Fatal(err)
	}
	if _, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(path), nil); !errors.Is(err, sqlitefile.ErrForeign) {
		t.Errorf("another program's: %v, want ErrForeign", err)
	}
}

// A copy without a name has none from before its first byte on, and is read as any other.
func TestVerifyUnnamed(t *testing.T) {
	whole, err := os.ReadFile(filepath.Join(enginetest.Written(t, true), datastore.EngineFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, damaged := range []bool{false, true} {
		dir := t.TempDir()
		u, err := sqlitefile.NewUnnamed(dir, int64(len(whole)), func(f *os.File) error {
			if left := enginetest.Glob(t, dir, "*"); len(left) > 0 {
				t.Errorf("there is %v", left)
			}
			text := bytes.Clone(whole)
			if damaged {
				text[len(text)-10] ^= 1
			}
			_, err := f.Write(text)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		v, err := backup.Verify(t.Context(), u, nil)
		if err != nil || v.OK == damaged || !damaged && (v.Revision != 301 || v.Keys != 100) {
			t.Errorf("damaged %v: got %+v, %v", damaged, v, err)
		}
		if left := enginetest.Glob(t, dir, "*"); len(left) > 0 {
			t.Errorf("there is %v", left)
		}
		if err := u.Close(); err != nil {
			t.Error(err)
		}
	}
	u, err := sqlitefile.NewUnnamed(t.TempDir(), 8192, func(*os.File) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if _, err := backup.Verify(t.Context(), u, nil); !errors.Is(err, sqlitefile.ErrForeign) && !errors.Is(err, sqlitefile.ErrCorrupt) {
		t.Errorf("no database: got %v", err)
	}
}
