package datastore

import (
	"context"
	"fmt"
	"sync"
	"testing"
)

// A barrier returns when every earlier request has finished, including requests whose callers did
// not wait for the answer.
func TestBarrierWaitsForEarlierRequests(t *testing.T) {
	e, lock := openLocked(t, t.TempDir(), Options{})
	defer lock.Close()
	defer e.Close()
	for round := range 20 {
		var callers sync.WaitGroup
		for i := range 8 {
			callers.Go(func() {
				ctx, cancel := context.WithCancel(t.Context())
				go cancel()
				_, _ = e.Put(ctx, PutRequest{Key: fmt.Sprint(round, "/", i), Value: []byte("x")}) // made, or not
			})
		}
		callers.Wait()
		if err := e.Barrier(t.Context()); err != nil {
			t.Fatal(err)
		}
		e.mu.Lock()
		ordered := e.spec.revision
		e.mu.Unlock()
		if durable := e.Revision(); durable != ordered {
			t.Fatalf("revision %d can be read after the barrier, and %d was ordered", durable, ordered)
		}
	}
}
