package datastore

import (
	"sort"
	"sync/atomic"

	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

const historyChunk = 512

// history is the sequence of changes in order. It grows at its end and is cut at its beginning; a change
// keeps its position. A history is a value: an older one stays valid while the newest one grows, because it
// never reads beyond its own end. Only the newest one may grow.
type history struct {
	chunks      []*[historyChunk]*version
	first, next uint64 // positions [first, next)
}

func (r history) at(pos uint64) *version {
	offset := pos - (r.first - r.first%historyChunk)
	return r.chunks[offset/historyChunk][offset%historyChunk]
}

func (r history) append(vs []*version) history {
	for _, v := range vs {
		if r.next == r.first && len(r.chunks) == 0 || r.next%historyChunk == 0 {
			r.chunks = append(r.chunks, new([historyChunk]*version))
		}
		offset := r.next - (r.first - r.first%historyChunk)
		r.chunks[offset/historyChunk][offset%historyChunk] = v
		r.next++
	}
	return r
}

// seek returns the position of the first change at or after revision.
func (r history) seek(revision int64) uint64 {
	n := sort.Search(int(r.next-r.first), func(i int) bool {
		return r.at(r.first+uint64(i)).Revision() >= revision
	})
	return r.first + uint64(n)
}

// cut removes the changes before pos.
func (r history) cut(pos uint64) history {
	if pos <= r.first {
		return r
	}
	drop := pos/historyChunk - r.first/historyChunk
	if drop > uint64(len(r.chunks)) {
		drop = uint64(len(r.chunks))
	}
	// A new slice: the old array would keep the removed chunks in memory.
	r.chunks = append([]*[historyChunk]*version(nil), r.chunks[drop:]...)
	r.first = pos
	return r
}

// version is one change of one key: a row of the log table with its place in memory, and an event for watchers. A
// goroutine that reaches it finds everything but the atomic fields unchanged.
type version struct {
	sqlitefile.Row
	size int32 // bytes of the value

	slot          cacheSlot // guarded by the cache's lock, as its neighbours in the queue of the slot
	before, after *version
	used          atomic.Bool // read since the last pass of the cache
	superseded    atomic.Bool // by a published version

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

// replaced returns the version that v has replaced, or nil if v created the key or that version is compacted.
func (v *version) replaced() *version {
	if p := v.prev.Load(); p != nil && !p.Tombstone() {
		return p
	}
	return nil
}

// header returns the version without its value.
func (v *version) header() KeyValue {
	return KeyValue{Key: v.Key, CreateRevision: v.Create, ModRevision: v.Revision(), Version: v.Version, Lease: v.Lease}
}
