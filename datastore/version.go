package datastore

import (
	"encoding/binary"
	"hash/crc32"
	"sync/atomic"
)

// version is one change of one key: a row of the log, and the event that
// watchers see. Everything but the two pointers is fixed before another
// goroutine can reach it.
type version struct {
	id      int64 // revision<<16 | sub
	key     string
	create  int64
	version int64 // 0 for a tombstone
	lease   int64
	size    int32 // bytes of the value

	slot cacheSlot   // guarded by the cache's lock
	used atomic.Bool // read since the cache last looked
	late atomic.Bool // superseded by a published version

	// prev is the version of the key before this one, tombstones included. It
	// becomes nil when compaction removes that version.
	prev atomic.Pointer[version]

	// value is nil for tombstones and for values only the disk has.
	value atomic.Pointer[[]byte]
}

const subBits = 16

// maxSubs is how many changes one revision can hold.
const maxSubs = 1 << subBits

func rowID(revision int64, sub int) int64 { return revision<<subBits | int64(sub) }

func (v *version) revision() int64 { return v.id >> subBits }
func (v *version) tombstone() bool { return v.version == 0 }

// at is the version of the key that revision sees, starting from v and going
// back; nil if the key was not there.
func (v *version) at(revision int64) *version {
	for ; v != nil; v = v.prev.Load() {
		if v.revision() <= revision {
			if v.tombstone() {
				return nil
			}
			return v
		}
	}
	return nil
}

// bytes is the size of the key and its value.
func (v *version) bytes() int64 { return int64(len(v.key)) + int64(v.size) }

// before is what the key was before v: nil if v created it or if that has been
// compacted.
func (v *version) before() *version {
	if p := v.prev.Load(); p != nil && !p.tombstone() {
		return p
	}
	return nil
}

// header is the version without its value.
func (v *version) header() KeyValue {
	return KeyValue{Key: v.key, CreateRevision: v.create, ModRevision: v.revision(), Version: v.version, Lease: v.lease}
}

const flagTombstone = 1

func (v *version) flags() int64 {
	if v.tombstone() {
		return flagTombstone
	}
	return 0
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// checksum is the CRC32C of everything the log keeps of v.
func (v *version) checksum(value []byte) int64 {
	var b [44]byte
	le := binary.LittleEndian
	le.PutUint64(b[0:], uint64(v.id))
	le.PutUint64(b[8:], uint64(v.create))
	le.PutUint64(b[16:], uint64(v.version))
	le.PutUint64(b[24:], uint64(v.lease))
	le.PutUint32(b[32:], uint32(v.flags()))
	le.PutUint32(b[36:], uint32(len(v.key)))
	le.PutUint32(b[40:], uint32(len(value)))
	sum := crc32.Update(0, castagnoli, b[:])
	sum = crc32.Update(sum, castagnoli, []byte(v.key))
	return int64(crc32.Update(sum, castagnoli, value))
}
