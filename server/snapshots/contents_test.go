package snapshots

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/karve-k8s/karve/datastore"
)

// The contents of a snapshot are read once for resets that follow each other, and again for
// another file.
func TestOwnContentsFollowTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "snapshot.tar")
	var o ownContents
	if _, err := o.of(path, nil); err == nil {
		t.Error("no error without a file")
	}
	reads := 0
	for _, step := range []struct {
		text string
		want int
	}{{"one", 1}, {"", 1}, {"three", 2}, {"", 2}} {
		if step.text != "" {
			if err := os.WriteFile(path, []byte(step.text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		contents, err := o.of(path, func() (*datastore.Dump, error) {
			reads++
			return &datastore.Dump{}, nil
		})
		if err != nil || contents == nil || reads != step.want {
			t.Fatalf("got %v, %v after %d reads, want the contents after %d", contents, err, reads, step.want)
		}
	}
}
