package datastore

import "sort"

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
