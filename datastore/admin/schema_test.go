package admin

import (
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/enginetest"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// nextSchema is what a release after this one could do: a table more, and a row
// of meta that says so.
var nextSchema = []step{
	func(c *sqlitefile.Connection) error { return c.Exec(`CREATE TABLE later (id INTEGER PRIMARY KEY)`) },
	func(c *sqlitefile.Connection) error {
		return c.Exec(`INSERT INTO meta (name, value) VALUES ('later', 1)`)
	},
}

func schemaOf(t *testing.T, path string) int64 {
	t.Helper()
	version, err := sqlitefile.WALSchema(path)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// asThisRelease makes a database that has the next schema one of this release,
// which ignores what it does not know: its rows can then be compared.
func asThisRelease(t *testing.T, path string) {
	t.Helper()
	c, err := sqlitefile.Connect(path, url.Values{"_pragma": {"wal_autocheckpoint(0)"}})
	if err != nil {
		t.Fatal(err)
	}
	keep := false // a WAL that is there is missed if it goes
	if sqlitefile.HasWAL(path) {
		keep = true
	}
	err = c.Exec("PRAGMA user_version = 1")
	keeping := c.PersistWAL(keep)
	if err := errors.Join(err, keeping, c.Close()); err != nil {
		t.Fatal(err)
	}
}

// Whatever happens after it, there is a verified backup before the first change,
// and this release can restore it.
func TestSchemaUpgradeBacksUpFirst(t *testing.T) {
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprintf("clean=%v", clean), func(t *testing.T) {
			dir := enginetest.Written(t, clean)
			path, want := filepath.Join(dir, datastore.EngineFile), enginetest.Contents(t, enginetest.CopyStore(t, dir))
			backedUp := false
			up, err := upgrade(path, nextSchema, datastore.Options{}, func(step string) {
				if step == "backed up" {
					backedUp = true
					if v := schemaOf(t, path); v != 1 {
						t.Errorf("the backup is made of schema %d", v)
					}
				}
			})
			if err != nil {
				t.Fatal(err)
			}
			if !backedUp || up == nil || up.From != 1 || up.To != 3 || up.Backup != path+".schema-1" {
				t.Fatalf("got %+v, want schema 1 to become 3 after a backup", up)
			}
			if got := schemaOf(t, path); got != 3 {
				t.Errorf("the schema is %d, want 3", got)
			}
			// The release before refuses what was made of it, and takes the backup.
			if err := enginetest.TryOpen(dir); !errors.Is(err, sqlitefile.ErrNewerSchema) {
				t.Errorf("opened by the release before: %v, want %v", err, sqlitefile.ErrNewerSchema)
			}
			old := t.TempDir()
			b, err := os.ReadFile(up.Backup)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(old, datastore.EngineFile), b, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := enginetest.TryOpen(old); err != nil {
				t.Errorf("the backup, opened by the release before: %v", err)
			}
			asThisRelease(t, path)
			if got := enginetest.Contents(t, dir); got != want {
				t.Error("after the upgrade the rows are others")
			}
			if again, err := upgrade(filepath.Join(old, datastore.EngineFile), nil, datastore.Options{}, nil); again != nil || err != nil {
				t.Errorf("with nothing to do: got %+v, %v", again, err)
			}
		})
	}
}

// A stop at any point leaves the old schema or the new one, with every row, and
// the next start goes on.
func TestSchemaUpgradeStoppedAnywhere(t *testing.T) {
	for _, clean := range []bool{true, false} {
		master := enginetest.Written(t, clean)
		want := enginetest.Contents(t, enginetest.CopyStore(t, master))
		for _, step := range []string{"backed up", "begun", "changed", "committed", "closed"} {
			dir := enginetest.CopyStore(t, master)
			path := filepath.Join(dir, datastore.EngineFile)
			killed := ""
			_, err := upgrade(path, nextSchema, datastore.Options{}, func(at string) {
				if at == step { // what a kill would leave now
					killed = enginetest.CopyStore(t, dir)
				}
			})
			if err != nil || killed == "" {
				t.Fatalf("clean=%v: %v, stopped at %q: %v", clean, err, step, killed != "")
			}
			path = filepath.Join(killed, datastore.EngineFile)
			early := slices.Contains([]string{"backed up", "begun", "changed"}, step)
			up, err := upgrade(path, nextSchema, datastore.Options{}, func(string) {})
			if err != nil || (up != nil) != early {
				t.Errorf("clean=%v, stopped at %q: the next start did %+v, %v", clean, step, up, err)
			}
			if got := schemaOf(t, path); got != 3 {
				t.Errorf("clean=%v, stopped at %q: schema %d, want 3", clean, step, got)
			}
			asThisRelease(t, path)
			if got := enginetest.Contents(t, killed); got != want {
				t.Errorf("clean=%v, stopped at %q: other rows", clean, step)
			}
		}
	}
}

// Without a backup nothing is changed; nor when a step fails, or of a damaged file.
func TestSchemaUpgradeThatFailsChangesNothing(t *testing.T) {
	dir := enginetest.Written(t, true)
	path := filepath.Join(dir, datastore.EngineFile)
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	unchanged := func(what string) {
		t.Helper()
		if after, err := os.ReadFile(path); err != nil || string(after) != string(before) {
			t.Errorf("%s: the file was changed (%v)", what, err)
		}
	}
	if err := os.MkdirAll(filepath.Join(path+".schema-1", "in the way"), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := upgrade(path, nextSchema, datastore.Options{}, func(string) {}); err == nil || !strings.Contains(err.Error(), "needs a backup first") {
		t.Errorf("with no room for a backup: %v", err)
	}
	unchanged("no backup")
	if err := os.RemoveAll(path + ".schema-1"); err != nil {
		t.Fatal(err)
	}
	failing := append(slices.Clone(nextSchema), func(*sqlitefile.Connection) error { return errors.New("no such thing") })
	if _, err := upgrade(path, failing, datastore.Options{}, func(string) {}); err == nil || !strings.Contains(err.Error(), "no such thing") || !strings.Contains(err.Error(), path+".schema-1") {
		t.Errorf("a step that fails: %v, want its error and the backup named", err)
	}
	if got := schemaOf(t, path); got != 1 {
		t.Errorf("after a step that failed: schema %d, want 1", got)
	}
	unchanged("a step that fails")
	before[len(before)/2] ^= 1
	if err := os.WriteFile(path, before, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := upgrade(path, nextSchema, datastore.Options{}, func(string) {}); err == nil {
		t.Error("a damaged file was upgraded")
	}
	unchanged("damage")
}

// The steps and the version belong together.
func TestSchemaVersionIsThatOfTheSteps(t *testing.T) {
	if want := 1 + len(steps); sqlitefile.SchemaVersion != want {
		t.Errorf("SchemaVersion is %d, and the steps lead to %d", sqlitefile.SchemaVersion, want)
	}
}
