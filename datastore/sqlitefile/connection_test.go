package sqlitefile

import (
	"net/url"
	"path/filepath"
	"testing"
)

func TestDataSource(t *testing.T) {
	for path, want := range map[string]string{
		"/a b/x?y#z.db": "file:///a%20b/x%3Fy%23z.db?_pragma=fullfsync%281%29&_pragma=synchronous%28FULL%29&mode=ro",
	} {
		if got := dataSource(path, url.Values{"_pragma": {"synchronous(FULL)"}, "mode": {"ro"}}); got != want {
			t.Errorf("%s: got %s, want %s", path, got, want)
		}
	}
}

// macOS' fsync does not reach the disk: SQLite has to be told so on every connection.
func TestEveryConnectionAsksForFullSync(t *testing.T) {
	f, err := Open(filepath.Join(t.TempDir(), FileName), false)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(true)
	if n, err := f.writer.Number("PRAGMA fullfsync"); n != 1 || err != nil {
		t.Errorf("the writer: fullfsync is %d (%v), want 1", n, err)
	}
	c, err := Connect(filepath.Join(t.TempDir(), "x.db"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if n, err := c.Number("PRAGMA fullfsync"); n != 1 || err != nil {
		t.Errorf("a connection without options: fullfsync is %d (%v), want 1", n, err)
	}
}
