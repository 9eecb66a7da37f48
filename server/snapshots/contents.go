package snapshots

import (
	"fmt"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/karve-k8s/karve/datastore"
)

// ownContentsIdle is how long the contents of the snapshot in the data directory stay in
// memory after a reset. Tests that share a cluster reset it every few seconds.
const ownContentsIdle = time.Minute

// ownContents caches the contents of the snapshot in the data directory. It reads them when they
// are needed, and drops them when they have not been used for ownContentsIdle.
type ownContents struct {
	mu       sync.Mutex
	contents *datastore.Dump
	file     os.FileInfo // the file that contents was read from
	idle     *time.Timer
}

// of returns the contents of the snapshot at path. It calls read unless they are cached.
func (o *ownContents) of(path string, read func() (*datastore.Dump, error)) (*datastore.Dump, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	file, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w: there is no snapshot yet", err)
	}
	if o.contents == nil || !os.SameFile(file, o.file) || file.Size() != o.file.Size() || !file.ModTime().Equal(o.file.ModTime()) {
		o.contents = nil // both together would need too much memory
		contents, err := read()
		if err != nil {
			return nil, err
		}
		o.contents, o.file = contents, file
	}
	if o.idle == nil {
		o.idle = time.AfterFunc(ownContentsIdle, func() {
			o.forget()
			// Package memory counts only allocations since the last collection. It does not
			// notice when older memory becomes garbage.
			runtime.GC()
		})
	} else {
		o.idle.Reset(ownContentsIdle)
	}
	return o.contents, nil
}

// forget frees the contents.
func (o *ownContents) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.contents, o.file = nil, nil
	if o.idle != nil {
		o.idle.Stop()
	}
}
