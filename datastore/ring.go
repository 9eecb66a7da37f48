package datastore

import "sort"

const ringChunk = 512

// ring is the history of changes in order, a sequence of positions that only
// grows at its end and is cut at its beginning. It is a value: an older copy
// stays valid while the newest one is appended to, as it never looks past its
// own end. Only the newest copy may be appended to.
type ring struct {
	chunks      []*[ringChunk]*version
	first, next uint64 // positions [first, next)
}

func (r ring) at(pos uint64) *version {
	offset := pos - (r.first - r.first%ringChunk)
	return r.chunks[offset/ringChunk][offset%ringChunk]
}

func (r ring) append(vs []*version) ring {
	for _, v := range vs {
		if r.next == r.first && len(r.chunks) == 0 || r.next%ringChunk == 0 {
			r.chunks = append(r.chunks, new([ringChunk]*version))
		}
		offset := r.next - (r.first - r.first%ringChunk)
		r.chunks[offset/ringChunk][offset%ringChunk] = v
		r.next++
	}
	return r
}

// seek is the position of the first change at or after revision.
func (r ring) seek(revision int64) uint64 {
	n := sort.Search(int(r.next-r.first), func(i int) bool {
		return r.at(r.first+uint64(i)).revision() >= revision
	})
	return r.first + uint64(n)
}

// cut drops the changes before pos.
func (r ring) cut(pos uint64) ring {
	if pos <= r.first {
		return r
	}
	drop := pos/ringChunk - r.first/ringChunk
	if drop > uint64(len(r.chunks)) {
		drop = uint64(len(r.chunks))
	}
	// A new slice: the old array would keep the dropped chunks.
	r.chunks = append([]*[ringChunk]*version(nil), r.chunks[drop:]...)
	r.first = pos
	return r
}
