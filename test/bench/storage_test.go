package main

import (
	"context"
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/kine"
)

// Every row runs on Karve's engine, and checks the answers.
func TestStorageRows(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	dir := t.TempDir()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	engine, err := datastore.OpenEngine(lock, datastore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer engine.Close()
	shim, err := kine.Serve(ctx, engine, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer shim.Close()
	r, err := dial("unix://" + filepath.Join(dir, "kine.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer r.client.Close()
	b := newStorageBench(r, storagePlan{keys: 4 * listKeys, part: 1000, most: 200 * time.Millisecond})
	for _, row := range storageRows {
		if row.only == "delete" {
			if err := r.compact(ctx); err != nil {
				t.Fatal(err)
			}
		}
		res, err := row.run(b, ctx)
		if err != nil || res.Ops == 0 || res.PerSecond <= 0 || res.P99 < res.P50 {
			t.Fatalf("%s: %+v, %v", row.row, res, err)
		}
	}
	if found, err := r.count(ctx, keyPrefix); err != nil || found != 0 {
		t.Errorf("after the deletes count = %d, %v, want 0", found, err)
	}
	if _, err := r.put(ctx, b.keys[0], []byte("x"), 1); !errors.Is(err, errConflict) {
		t.Errorf("put at a wrong revision: %v, want %v", err, errConflict)
	}
}
