package datastore

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/internal/eventually"
)

// After a compaction, memory and file hold little more than the live data. The next start completes
// a compaction that a kill interrupted.
func TestCompactionFreesSpace(t *testing.T) {
	dir := t.TempDir()
	e, lock := openLocked(t, dir, Options{})
	names := fill(t, e, 300)
	for range 30 {
		var ops []Op
		for _, name := range names {
			ops = append(ops, Op{Put: &PutRequest{Key: name, Value: incompressibleValue()}})
		}
		if _, err := e.Txn(t.Context(), TxnRequest{Then: ops}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := e.Delete(t.Context(), DeleteRequest{Key: names[0], End: names[100]}); err != nil {
		t.Fatal(err)
	}
	put(t, e, "/last", "v")
	if err := e.Compact(t.Context(), e.Revision(), false); err != nil {
		t.Fatal(err)
	}
	crash(t, e) // in the middle of the compaction
	lock.Close()
	e, lock = openLocked(t, dir, Options{})
	if err := e.waitTidy(t.Context()); err != nil {
		t.Fatal(err)
	}
	live := int64(200 * 1100)
	eventually.Nil(t, "the file shrinks", func() error {
		info, err := os.Stat(e.path)
		if err == nil && info.Size() > 2*live+64<<10 {
			err = fmt.Errorf("it is %d bytes with %d bytes of live data", info.Size(), live)
		}
		return err
	})
	if s := e.Stats(); s.Keys != 201 || s.Events != 1 || s.CacheBytes > 2*live || e.snap.Load().dead.Len() != 0 {
		t.Errorf("after compaction: %+v and %d tombstones; want 201 keys, 1 event, none", s, e.snap.Load().dead.Len())
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	lock.Close()
	e = openTest(t, dir, Options{})
	if s, err := backup.ReadStats(t.Context(), e.Source()); err != nil || s.Rows != 201 {
		t.Errorf("%+v, %v; want 201 rows", s, err)
	}
}

func incompressibleValue() []byte { return []byte(fmt.Sprintf("%1024d", time.Now().UnixNano())) }

func wantSound(t *testing.T, e *Engine) {
	t.Helper()
	v, err := backup.Verify(t.Context(), e.Source(), nil)
	if err == nil {
		err = v.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}
