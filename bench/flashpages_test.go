package main

import (
	"bytes"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
)

// The reader names what the commits of an engine are about, and counts their pages.
func TestWALReader(t *testing.T) {
	lock, err := directory.Acquire(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	e, err := datastore.OpenEngine(lock, datastore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	put := func(key string, size int) {
		t.Helper()
		if _, err := e.Put(t.Context(), datastore.PutRequest{Key: key, Value: bytes.Repeat([]byte("x"), size)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		put(fmt.Sprint("/registry/earlier/", i), 1000)
	}
	r := newWALReader(filepath.Join(lock.Dir(), datastore.EngineFile+"-wal"))
	poll := func() {
		t.Helper()
		for range 3 {
			if err := r.poll(); err != nil {
				t.Fatal(err)
			}
		}
	}
	poll()
	clear(r.commits) // as follow does
	for range 5 {
		put("/registry/pods/default/a", 100)
		put("/registry/services/endpoints/default/b", 9000)
	}
	poll()
	if _, err := e.Grant(t.Context(), 7, 3600); err != nil {
		t.Fatal(err)
	}
	if err := e.Compact(t.Context(), e.Revision(), true); err != nil {
		t.Fatal(err)
	}
	poll()
	table := map[string][]string{}
	for _, line := range r.table(time.Hour) {
		table[line[0]] = line
	}
	want := func(name, commits string, pages map[int]bool) {
		t.Helper()
		line := table[name]
		if line == nil || commits != "" && line[1] != commits {
			t.Errorf("%s: %v, want %s commits (%v)", name, line, commits, table)
			return
		}
		for column, some := range pages {
			if (line[column] != "0") != some {
				t.Errorf("%s: %s in column %s, want some: %v", name, line[column], table["what is written, in an hour"][column], some)
			}
		}
	}
	const leaf, overflow, tables = 3, 5, 8
	want("pods", "5", map[int]bool{leaf: true, tables: false})
	want("endpoints", "5", map[int]bool{leaf: true, overflow: true, tables: false})
	want("(compaction)", "", map[int]bool{leaf: true, tables: false})
	want("(meta and lease tables)", "", map[int]bool{leaf: false, tables: true})
	if table["earlier"] != nil {
		t.Errorf("what was written before counts: %v", table["earlier"])
	}
}
