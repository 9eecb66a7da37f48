package snapshots

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/karve-k8s/karve/datastore"
)

// The contents of a snapshot are read once for resets that follow each other, again for
// another file, and do not stay in memory.
func TestOwnContentsAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "snapshot.tar")
		var o ownContents
		reads := 0
		var newest weak.Pointer[datastore.Dump]
		of := func(want int) {
			t.Helper()
			contents, err := o.of(path, func() (*datastore.Dump, error) {
				reads++
				contents := &datastore.Dump{}
				newest = weak.Make(contents)
				return contents, nil
			})
			if err != nil || contents == nil || reads != want {
				t.Fatalf("got %v, %v after %d reads, want the contents after %d", contents, err, reads, want)
			}
		}
		if _, err := o.of(path, nil); err == nil {
			t.Error("no error without a file")
		}
		write := func(text string) {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		write("one")
		of(1)
		time.Sleep(ownContentsIdle - time.Second)
		of(1)
		time.Sleep(ownContentsIdle - time.Second)
		of(1)
		write("three")
		of(2)
		time.Sleep(ownContentsIdle + time.Second)
		synctest.Wait()
		o.mu.Lock()
		if o.contents != nil {
			t.Error("the contents are kept")
		}
		o.mu.Unlock()
		if newest.Value() != nil {
			t.Error("the contents are not collected")
		}
		of(3)
		o.forget()
		if o.contents != nil {
			t.Error("the contents are kept after a stop")
		}
	})
}
