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

// ownContents are the contents of the snapshot in the data directory. They are read when
// they are needed, and forgotten when they have not been needed for a while.
type ownContents struct {
	mu       sync.Mutex
	contents *datastore.Dump
	file     os.FileInfo // that contents was read from
	idle     *time.Timer
}

// of returns the contents of the snapshot at path, which read reads unless they are known.
func (o *ownContents) of(path string, read func() (*datastore.Dump, error)) (*datastore.Dump, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	file, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w: there is no snapshot yet", err)
	}
	if o.contents == nil || !os.SameFile(file, o.file) || file.Size() != o.file.Size() || !file.ModTime().Equal(o.file.ModTime()) {
		o.contents = nil // there is no memory for both
		contents, err := read()
		if err != nil {
			return nil, err
		}
		o.contents, o.file = contents, file
	}
	if o.idle == nil {
		o.idle = time.AfterFunc(ownContentsIdle, func() {
			o.forget()
			// Package memory counts what was allocated since the last collection. It
			// does not see that something older became garbage.
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
