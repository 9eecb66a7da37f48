package directory

import (
	"bytes"
	"compress/flate"
	"io"
	"os"
	"path/filepath"
	"testing"
)

// The ballast cannot be compressed, or it would hold no room.
func TestBallastIsIncompressible(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "mvcc.db.ballast")
	b := NewBallast(filepath.Join(dir, "mvcc.db"), 1<<20, nil)
	if b.Open(); b.Released() {
		t.Fatal("the disk is full")
	}
	for _, name := range []string{path, path + ".start"} {
		if info, err := os.Stat(name); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%v, %v, want mode 600", info, err)
		}
	}
	now, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var small bytes.Buffer
	w, _ := flate.NewWriter(&small, flate.BestCompression)
	if _, err := io.Copy(w, bytes.NewReader(now)); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if len(now) != 1<<20 || small.Len() < len(now) {
		t.Errorf("%d bytes, of which deflate makes %d", len(now), small.Len())
	}
	// A good one stays as it is: an SD card wears out.
	if err := b.make(); err != nil {
		t.Fatal(err)
	}
	if again, _ := os.ReadFile(path); !bytes.Equal(again, now) {
		t.Error("it was written again")
	}
}
