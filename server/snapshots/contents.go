package snapshots

import (
	"fmt"
	"os"
	"sync"

	"github.com/karve-k8s/karve/datastore"
)

// ownContents caches the contents of the snapshot in the data directory: tests that share a cluster reset it every few
// seconds. karve reset sends its file instead.
type ownContents struct {
	mu       sync.Mutex
	contents *datastore.Dump
	file     os.FileInfo // the file that contents was read from
}

// of returns the contents of the snapshot at path. It calls read unless they are cached.
func (o *ownContents) of(path string, read func() (*datastore.Dump, error)) (*datastore.Dump, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	file, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("%w: there is no backup yet", err)
	}
	if o.contents == nil || !os.SameFile(file, o.file) || file.Size() != o.file.Size() || !file.ModTime().Equal(o.file.ModTime()) {
		o.contents = nil // both together would need too much memory
		contents, err := read()
		if err != nil {
			return nil, err
		}
		o.contents, o.file = contents, file
	}
	return o.contents, nil
}
