package directory

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// What a killed process leaves is removed by the next one that makes a file in the same directory, and
// nothing else is: not what another is still working at, and not what only looks like it.
func TestNextTempDirRemovesWhatAKilledOneLeft(t *testing.T) {
	out := t.TempDir()
	atWork, err := NewTempDir(out)
	if err != nil {
		t.Fatal(err)
	}
	defer atWork.Remove()
	killed, err := NewTempDir(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(killed.File(), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	killed.lock.Close() // as the kernel does it
	others := []string{".karve-mine.partial", ".other-3.partial", ".karve-4.partial.old"}
	for _, name := range others {
		if err := os.Mkdir(filepath.Join(out, name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(out, name, "lock"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	mine, err := NewTempDir(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := mine.Remove(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(out)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, entry := range entries {
		got = append(got, entry.Name())
	}
	want := append([]string{filepath.Base(atWork.dir)}, others...)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("left are %q, want %q", got, want)
	}
}
