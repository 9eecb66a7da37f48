package datastore

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"modernc.org/sqlite"
)

// nextSchema is what a release after this one could do: a table more, and a row
// of meta that says so.
var nextSchema = []schemaStep{
	func(c *connection) error { return c.exec(`CREATE TABLE later (id INTEGER PRIMARY KEY)`) },
	func(c *connection) error { return c.exec(`INSERT INTO meta (name, value) VALUES ('later', 1)`) },
}

func schemaOf(t *testing.T, path string) int64 {
	t.Helper()
	version, err := logSchema(path)
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// asThisRelease makes a database that has the next schema one of this release,
// which ignores what it does not know: its rows can then be compared.
func asThisRelease(t *testing.T, path string) {
	t.Helper()
	c, err := (&disk{path: path}).connect(pragmas(Full))
	if err != nil {
		t.Fatal(err)
	}
	keep := 0 // a log that is there is missed if it goes
	if hasLog(path) {
		keep = 1
	}
	err = c.exec("PRAGMA user_version = 1")
	_, keeping := c.Conn.(sqlite.FileControl).FileControlPersistWAL("main", keep)
	if err := errors.Join(err, keeping, c.close()); err != nil {
		t.Fatal(err)
	}
}

// Whatever happens after it, there is a verified backup before the first change,
// and this release can restore it.
func TestSchemaUpgradeBacksUpFirst(t *testing.T) {
	for _, clean := range []bool{true, false} {
		t.Run(fmt.Sprintf("clean=%v", clean), func(t *testing.T) {
			dir := writtenStore(t, clean)
			path, want := filepath.Join(dir, EngineFile), contents(t, copyStore(t, dir))
			backedUp := false
			up, err := upgradeSchema(path, nextSchema, Options{}, func(step string) {
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
			if err := tryOpen(t, dir); !errors.Is(err, ErrNewerSchema) {
				t.Errorf("opened by the release before: %v, want %v", err, ErrNewerSchema)
			}
			old := t.TempDir()
			b, err := os.ReadFile(up.Backup)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(old, EngineFile), b, 0o600); err != nil {
				t.Fatal(err)
			}
			if got := newest(contents(t, old)); got != newest(want) {
				t.Errorf("the backup has %s, want %s", got, newest(want))
			}
			asThisRelease(t, path)
			if got := contents(t, dir); got != want {
				t.Error("after the upgrade the rows are others")
			}
			if again, err := upgradeSchema(filepath.Join(old, EngineFile), nil, Options{}, nil); again != nil || err != nil {
				t.Errorf("with nothing to do: got %+v, %v", again, err)
			}
		})
	}
}

// newest is the revision of contents, with how much there is.
func newest(contents string) string {
	return fmt.Sprint(strings.SplitN(contents, "/", 2)[0], len(contents))
}

// A stop at any point leaves the old schema or the new one, with every row, and
// the next start goes on.
func TestSchemaUpgradeStoppedAnywhere(t *testing.T) {
	for _, clean := range []bool{true, false} {
		master := writtenStore(t, clean)
		want := contents(t, copyStore(t, master))
		for _, step := range []string{"backed up", "begun", "changed", "committed", "closed"} {
			dir := copyStore(t, master)
			path := filepath.Join(dir, EngineFile)
			killed := ""
			_, err := upgradeSchema(path, nextSchema, Options{}, func(at string) {
				if at == step { // what a kill would leave now
					killed = copyStore(t, dir)
				}
			})
			if err != nil || killed == "" {
				t.Fatalf("clean=%v: %v, stopped at %q: %v", clean, err, step, killed != "")
			}
			path = filepath.Join(killed, EngineFile)
			early := slices.Contains([]string{"backed up", "begun", "changed"}, step)
			up, err := upgradeSchema(path, nextSchema, Options{}, func(string) {})
			if err != nil || (up != nil) != early {
				t.Errorf("clean=%v, stopped at %q: the next start did %+v, %v", clean, step, up, err)
			}
			if got := schemaOf(t, path); got != 3 {
				t.Errorf("clean=%v, stopped at %q: schema %d, want 3", clean, step, got)
			}
			asThisRelease(t, path)
			if got := contents(t, killed); got != want {
				t.Errorf("clean=%v, stopped at %q: other rows", clean, step)
			}
		}
	}
}

// Without a backup nothing is changed; nor when a step fails, or of a damaged file.
func TestSchemaUpgradeThatFailsChangesNothing(t *testing.T) {
	dir := writtenStore(t, true)
	path := filepath.Join(dir, EngineFile)
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
	if _, err := upgradeSchema(path, nextSchema, Options{}, func(string) {}); err == nil || !strings.Contains(err.Error(), "not without a backup") {
		t.Errorf("with no room for a backup: %v", err)
	}
	unchanged("no backup")
	if err := os.RemoveAll(path + ".schema-1"); err != nil {
		t.Fatal(err)
	}
	failing := append(slices.Clone(nextSchema), func(*connection) error { return errors.New("no such thing") })
	if _, err := upgradeSchema(path, failing, Options{}, func(string) {}); err == nil || !strings.Contains(err.Error(), "no such thing") || !strings.Contains(err.Error(), path+".schema-1") {
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
	if _, err := upgradeSchema(path, nextSchema, Options{}, func(string) {}); err == nil {
		t.Error("a damaged file was upgraded")
	}
	unchanged("damage")
}

// The steps and the version belong together.
func TestSchemaVersionIsThatOfTheSteps(t *testing.T) {
	if want := 1 + len(schemaSteps); schemaVersion != want {
		t.Errorf("schemaVersion is %d, and the steps lead to %d", schemaVersion, want)
	}
}
