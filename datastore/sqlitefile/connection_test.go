package sqlitefile

import (
	"path/filepath"
	"testing"
)

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
