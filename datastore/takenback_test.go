package datastore

import (
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karve-k8s/karve/internal/fence"
)

// A write whose sender has taken it back is not made. The sender is asked while the write is ordered, with the lock
// held: otherwise another write, which ends the sender's right, could come in between.
func TestWritesAreTakenBackWhenTheyAreOrdered(t *testing.T) {
	e := openTest(t, t.TempDir(), Options{})
	var over atomic.Pointer[error]
	asked := 0
	ctx := fence.With(t.Context(), func() (time.Duration, error) {
		if e.mu.TryLock() {
			e.mu.Unlock()
			t.Error("the sender was asked without the lock")
		}
		asked++
		if err := over.Load(); err != nil {
			return 0, *err
		}
		return time.Hour, nil
	})
	writes := map[string]func() error{
		"put":    func() error { _, err := e.Put(ctx, PutRequest{Key: "/a", Value: []byte("v")}); return err },
		"delete": func() error { _, err := e.Delete(ctx, DeleteRequest{Key: "/a"}); return err },
		"lease":  func() error { _, err := e.Grant(ctx, 0, 60); return err },
	}
	for name, write := range writes {
		if err := write(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	lost := errors.New("the lease is another server's")
	over.Store(&lost)
	put(t, e, "/a", "of another sender")
	before := e.Revision()
	for name, write := range writes {
		if err := write(); !errors.Is(err, ErrTakenBack) || !errors.Is(err, lost) {
			t.Errorf("%s: got %v, want it taken back", name, err)
		}
	}
	if asked != 2*len(writes) || e.Revision() != before {
		t.Errorf("asked %d times, and the revision is %d; want %d and %d", asked, e.Revision(), 2*len(writes), before)
	}
	wantValue(t, e, "/a", 0, "of another sender")
}
