package datastore

import (
	"sync/atomic"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// version is one change of one key: a row of the log table with its place in memory, and an event for watchers. A
// goroutine that reaches it finds everything but the atomic fields unchanged.
type version struct {
	sqlitefile.Row
	size int32 // bytes of the value

	slot       cacheSlot   // guarded by the cache's lock
	used       atomic.Bool // read since the last pass of the cache
	superseded atomic.Bool // by a published version

	// prev is the version of the key before this one, which may be a tombstone. It becomes nil when compaction
	// removes that version.
	prev atomic.Pointer[version]

	// value is nil for tombstones, and for values that are only on the disk.
	value atomic.Pointer[[]byte]
}

// at returns the version of the key as of a revision, from v backwards, or nil if the key did not exist.
func (v *version) at(revision int64) *version {
	for ; v != nil; v = v.prev.Load() {
		if v.Revision() <= revision {
			if v.Tombstone() {
				return nil
			}
			return v
		}
	}
	return nil
}

// bytes is the size of the key and its value.
func (v *version) bytes() int64 { return int64(len(v.Key)) + int64(v.size) }

// before returns the version that v has replaced, or nil if v created the key or that version is compacted.
func (v *version) before() *version {
	if p := v.prev.Load(); p != nil && !p.Tombstone() {
		return p
	}
	return nil
}

// header returns the version without its value.
func (v *version) header() KeyValue {
	return KeyValue{Key: v.Key, CreateRevision: v.Create, ModRevision: v.Revision(), Version: v.Version, Lease: v.Lease}
}
