package sqlitefile

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// An error of an open names the modes, which say who can open the file.
func TestExplainNamesTheModes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, mode := range map[string]os.FileMode{file: 0o400, dir: 0o750} {
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	got := Explain(file, fmt.Errorf("open %s: %w", file, fs.ErrPermission)).Error()
	if !strings.Contains(got, "open database "+file) || !strings.Contains(got, "its mode: 0400; its directory's: 0750; the server's user") {
		t.Errorf("got %s", got)
	}
}
