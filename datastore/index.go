package datastore

import (
	"math"

	"github.com/tidwall/btree"
)

// tree is an ordered map from keys to versions; Copy is O(1) and shares nodes
// until one side changes them.
type tree = btree.Map[string, *version]

const treeDegree = 16

func newTree() *tree { return btree.NewMap[string, *version](treeDegree) }

// index has all keys at one revision.
//
// live has the newest version of every live key. dead has the newest tombstone of every deleted key that
// has uncompacted history. The prev pointers lead to older versions.
type index struct {
	revision   int64
	live, dead *tree
	bytes      int64 // of the keys in live and of their values
}

func newIndex(revision int64) index {
	return index{revision: revision, live: newTree(), dead: newTree()}
}

// clone returns an index that does not change when v does.
func (v *index) clone() index {
	c := *v
	c.live, c.dead = v.live.Copy(), v.dead.Copy()
	return c
}

// head returns the newest version of a key, which may be a tombstone, or nil.
func (v *index) head(key string) *version {
	if n, ok := v.live.Get(key); ok {
		return n
	}
	n, _ := v.dead.Get(key)
	return n
}

// set makes n the newest version of its key.
func (v *index) set(n *version) {
	if n.Tombstone() {
		if old, was := v.live.Delete(n.Key); was {
			v.bytes -= old.bytes()
		}
		v.dead.Set(n.Key, n)
		return
	}
	v.bytes += n.bytes()
	if old, was := v.live.Set(n.Key, n); was {
		v.bytes -= old.bytes()
	}
	if v.dead.Len() > 0 {
		v.dead.Delete(n.Key)
	}
}

// rank returns the number of live keys before key. It is a binary search by position, since the tree has
// counts.
func (v *index) rank(key string) int {
	low, high := 0, v.live.Len()
	for low < high {
		mid := (low + high) / 2
		if k, _, _ := v.live.GetAt(mid); k < key {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// count returns the number of live keys in a range.
func (v *index) count(key, end string) int64 {
	switch end {
	case "":
		if _, ok := v.live.Get(key); ok {
			return 1
		}
		return 0
	case allKeys:
		return int64(v.live.Len() - v.rank(key))
	}
	if end <= key {
		return 0
	}
	return int64(v.rank(end) - v.rank(key))
}

// find returns the versions in the range of a request, and how many there are in all.
func (v *index) find(req RangeRequest) (hits []*version, count int64) {
	if req.Revision != 0 && req.Revision != v.revision {
		return v.findAt(req)
	}
	key, end, limit, countOnly := req.Key, req.End, req.Limit, req.CountOnly
	if end == "" {
		if n, ok := v.live.Get(key); ok {
			if countOnly {
				return nil, 1
			}
			return []*version{n}, 1
		}
		return nil, 0
	}
	count = v.count(key, end)
	if countOnly || count == 0 {
		return nil, count
	}
	size := count
	if limit > 0 {
		size = min(limit, count)
	}
	hits = make([]*version, 0, size)
	v.live.Ascend(key, func(k string, n *version) bool {
		if int64(len(hits)) == size {
			return false
		}
		hits = append(hits, n)
		return true
	})
	return hits, count
}

// findAt is find for a past revision: it merges live and dead keys and follows their history.
func (v *index) findAt(req RangeRequest) (hits []*version, count int64) {
	key, end, limit := req.Key, req.End, req.Limit
	most := int64(math.MaxInt64) // to count
	if req.NoCount && limit > 0 && !req.CountOnly {
		most = limit + 1 // to see that there are more
	}
	take := func(head *version) (more bool) {
		n := head.at(req.Revision)
		if n == nil {
			return true
		}
		count++
		if !req.CountOnly && (limit <= 0 || int64(len(hits)) < limit) {
			hits = append(hits, n)
		}
		return count < most
	}
	if end == "" {
		if head := v.head(key); head != nil {
			take(head)
		}
		return hits, count
	}
	dead := v.dead.Iter()
	left := dead.Seek(key)
	v.live.Ascend(key, func(k string, head *version) bool {
		if !inRange(k, key, end) {
			return false
		}
		for ; left && dead.Key() < k; left = dead.Next() {
			if !take(dead.Value()) {
				return false
			}
		}
		return take(head)
	})
	for ; count < most && left && inRange(dead.Key(), key, end); left = dead.Next() {
		take(dead.Value())
	}
	return hits, count
}

// snapshot is the state that readers see. It is durable, and does not change once it is published.
type snapshot struct {
	index
	compacted int64   // compaction revision
	history   history // every change from the compaction revision on
}
