package sqlitefile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A database with a schema that no release wrote is refused, and stays as it is.
func TestOlderSchemaIsRefused(t *testing.T) {
	path := filepath.Join(t.TempDir(), FileName)
	f, err := Open(path, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.CloseInOrder(nil, nil); err != nil {
		t.Fatal(err)
	}
	c, err := Connect(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(c.Exec("PRAGMA user_version = 0"), c.Close()); err != nil {
		t.Fatal(err)
	}
	before, _ := os.ReadFile(path)
	if _, err := Open(path, Options{}); !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), "has schema 0") {
		t.Errorf("got %v, want %v and the schema", err, ErrCorrupt)
	}
	if after, _ := os.ReadFile(path); !bytes.Equal(before, after) {
		t.Error("the refused database was changed")
	}
}
