package directory

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

// What a wrong clock has dated into the future goes before what is old, and the newest stays.
func TestSurplus(t *testing.T) {
	for name, test := range map[string]struct {
		names []string
		made  string
		keep  int
		want  string
	}{
		"enough":           {[]string{"1", "2", "3"}, "3", 3, "[]"},
		"the oldest":       {[]string{"1", "2", "3"}, "3", 2, "[1]"},
		"one":              {[]string{"1", "2", "3"}, "3", 1, "[1 2]"},
		"of the future":    {[]string{"1", "2", "3", "8", "9"}, "3", 3, "[8 9]"},
		"a few of them":    {[]string{"1", "2", "3", "8", "9"}, "3", 4, "[8]"},
		"made in the past": {[]string{"1", "7", "8", "9"}, "1", 4, "[]"},
		"not there":        {[]string{"1", "2"}, "3", 2, "[1]"},
	} {
		if got := fmt.Sprint(Surplus(test.names, test.made, test.keep)); got != test.want {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

// Only names of exactly that form are Karve's, and only files.
func TestKept(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{
		"a-20260102T030405Z", "a-20260102T030405Z.2", "a-20250102T030405Z", "a-20260102T030405Z-wal", "a-20260102T030405Z.old", "a-20260102T030405Z.",
		"a-mine", "a-20261302T030405Z", "b-20260102T030405Z",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	err := errors.Join(os.Mkdir(filepath.Join(dir, "a-20270102T030405Z"), 0o700), os.Symlink("a-mine", filepath.Join(dir, "a-20280102T030405Z")))
	if err != nil {
		t.Skipf("this system makes no links: %v", err)
	}
	files, err := Kept(dir, "a-")
	var names []string
	for _, file := range files {
		names = append(names, filepath.Base(file))
	}
	if got := fmt.Sprint(names); err != nil || got != "[a-20250102T030405Z a-20260102T030405Z a-20260102T030405Z.2]" {
		t.Errorf("got %s, %v", got, err)
	}
	if _, err := Kept(filepath.Join(dir, "missing"), "a-"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a directory that is missing: %v", err)
	}
}
