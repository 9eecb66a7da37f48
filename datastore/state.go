package datastore

import "github.com/tidwall/btree"

// tree is an ordered map from keys to versions; Copy is O(1) and shares nodes
// until one side changes them.
type tree = btree.Map[string, *version]

const treeDegree = 16

func newTree() *tree { return btree.NewMap[string, *version](treeDegree) }

// view is the whole of the store at one revision.
//
// live has the newest version of every key that is there, dead the newest
// tombstone of every key that is not but has uncompacted history; older versions
// hang off both by their prev pointers.
type view struct {
	revision   int64
	live, dead *tree
}

// copy is a view that does not change when v does.
func (v *view) copy() view {
	return view{revision: v.revision, live: v.live.Copy(), dead: v.dead.Copy()}
}

// head is the newest version of key, tombstones included, or nil.
func (v *view) head(key string) *version {
	if n, ok := v.live.Get(key); ok {
		return n
	}
	n, _ := v.dead.Get(key)
	return n
}

// set makes n the newest version of its key.
func (v *view) set(n *version) {
	if n.tombstone() {
		v.live.Delete(n.key)
		v.dead.Set(n.key, n)
		return
	}
	v.live.Set(n.key, n)
	if v.dead.Len() > 0 {
		v.dead.Delete(n.key)
	}
}

// rank is the number of keys of t before key: a binary search by position, as
// the tree keeps counts.
func rank(t *tree, key string) int {
	low, high := 0, t.Len()
	for low < high {
		mid := (low + high) / 2
		if k, _, _ := t.GetAt(mid); k < key {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

// count is the number of keys in a range of the newest state.
func (v *view) count(key, end string) int64 {
	switch end {
	case "":
		if _, ok := v.live.Get(key); ok {
			return 1
		}
		return 0
	case allKeys:
		return int64(v.live.Len() - rank(v.live, key))
	}
	if end <= key {
		return 0
	}
	return int64(rank(v.live, end) - rank(v.live, key))
}

// find answers the versions in a range as of revision, at most limit of them (0
// for all), and how many there are in all.
func (v *view) find(key, end string, revision, limit int64, countOnly bool) (hits []*version, count int64) {
	if revision != 0 && revision != v.revision {
		return v.findAt(key, end, revision, limit, countOnly)
	}
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

// findAt reads the past: it merges live and dead keys and follows their history.
func (v *view) findAt(key, end string, revision, limit int64, countOnly bool) (hits []*version, count int64) {
	take := func(head *version) {
		n := head.at(revision)
		if n == nil {
			return
		}
		count++
		if !countOnly && (limit <= 0 || int64(len(hits)) < limit) {
			hits = append(hits, n)
		}
	}
	if end == "" {
		if head := v.head(key); head != nil {
			take(head)
		}
		return hits, count
	}
	dead := v.dead.Iter()
	more := dead.Seek(key)
	v.live.Ascend(key, func(k string, head *version) bool {
		if !inRange(k, key, end) {
			return false
		}
		for more && dead.Key() < k {
			take(dead.Value())
			more = dead.Next()
		}
		take(head)
		return true
	})
	for more && inRange(dead.Key(), key, end) {
		take(dead.Value())
		more = dead.Next()
	}
	return hits, count
}

// snapshot is what readers see: durable, and never changed once published.
type snapshot struct {
	view
	compacted int64 // compaction revision
	ring      ring  // every change from the compaction revision on
}
