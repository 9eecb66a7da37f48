package datastore

import (
	"math"
	"sync"
)

// cacheSlot says which queue of the cache a version's value is accounted in.
type cacheSlot uint8

const (
	slotNone       cacheSlot = iota
	slotLive                 // newest version of its key
	slotSuperseded           // superseded: watchers need it for a moment, later reads rarely do
)

// valueCache bounds the bytes of values in memory. On a hit, a reader loads the version's pointer and sets
// its used bit without a lock. Eviction is second chance (CLOCK) over two queues, superseded versions
// first, so the history of a key that changes often does not evict the values of other keys.
type valueCache struct {
	mu               sync.Mutex
	budget           int64    // of all values
	supersededBudget int64    // of superseded values
	used, superseded int64    // bytes
	queue            [3]queue // by slot
}

// newValueCache makes a cache. A budget of 0 is no bound.
func newValueCache(budget int64) *valueCache {
	if budget <= 0 {
		return &valueCache{budget: math.MaxInt64, supersededBudget: math.MaxInt64}
	}
	return &valueCache{budget: budget, supersededBudget: budget / 8}
}

// add counts values that are on the disk, and evicts others for them.
func (c *valueCache) add(vs ...*version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range vs {
		if v.Tombstone() {
			continue
		}
		c.put(v)
	}
	c.shrink()
}

// addValue gives v a value that was read again.
func (c *valueCache) addValue(v *version, value []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if v.slot != slotNone || v.value.Load() != nil { // another reader was faster
		return
	}
	v.value.Store(&value)
	c.put(v)
	c.shrink()
}

func (c *valueCache) put(v *version) {
	if v.slot != slotNone {
		return
	}
	v.slot = slotLive
	if v.superseded.Load() {
		v.slot = slotSuperseded
		c.superseded += v.cost()
	}
	c.used += v.cost()
	c.queue[v.slot].push(v)
}

// retire moves superseded versions to the queue that is emptied first.
func (c *valueCache) retire(vs ...*version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range vs {
		v.superseded.Store(true)
		if v.slot != slotLive {
			continue
		}
		c.queue[slotLive].remove(v)
		v.slot = slotSuperseded
		v.used.Store(false)
		c.superseded += v.cost()
		c.queue[slotSuperseded].push(v)
	}
	c.shrink()
}

// drop evicts values whose rows are deleted.
func (c *valueCache) drop(vs ...*version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range vs {
		c.evict(v)
		v.value.Store(nil)
	}
}

func (c *valueCache) evict(v *version) {
	if v.slot == slotNone {
		return
	}
	c.queue[v.slot].remove(v)
	if v.slot == slotSuperseded {
		c.superseded -= v.cost()
	}
	c.used -= v.cost()
	v.slot = slotNone
	v.value.Store(nil)
}

func (c *valueCache) shrink() {
	for c.superseded > c.supersededBudget || c.used > c.budget && c.superseded > 0 {
		c.evictFrom(slotSuperseded)
	}
	for c.used > c.budget && c.queue[slotLive].first != nil {
		c.evictFrom(slotLive)
	}
}

func (c *valueCache) evictFrom(slot cacheSlot) {
	q := &c.queue[slot]
	if v := q.first; v.used.CompareAndSwap(true, false) {
		q.remove(v)
		q.push(v)
	} else {
		c.evict(v)
	}
}

func (c *valueCache) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// cost is the memory of a cached value with its slice header.
func (v *version) cost() int64 { return int64(v.size) + 24 }

// queue is a list of versions, in the order in which they are to be evicted.
type queue struct{ first, last *version }

func (q *queue) push(v *version) {
	if v.before = q.last; q.last == nil {
		q.first = v
	} else {
		q.last.after = v
	}
	q.last = v
}

func (q *queue) remove(v *version) {
	if v.before == nil {
		q.first = v.after
	} else {
		v.before.after = v.after
	}
	if v.after == nil {
		q.last = v.before
	} else {
		v.after.before = v.before
	}
	v.before, v.after = nil, nil
}
