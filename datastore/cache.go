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
	budget           int64 // of all values
	supersededBudget int64 // of superseded values
	used, superseded int64 // bytes
	count            [3]int
	queue            [3]fifo // by slot; entries whose slot has changed are skipped
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
	c.count[v.slot]++
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
		c.count[slotLive]--
		c.count[slotSuperseded]++
		v.slot = slotSuperseded
		v.used.Store(false)
		c.superseded += v.cost()
		c.queue[slotSuperseded].push(v)
	}
	c.shrink()
	for i := range c.queue {
		c.queue[i].tidy(c.count[i], cacheSlot(i))
	}
}

// drop evicts values whose rows are deleted.
func (c *valueCache) drop(vs ...*version) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, v := range vs {
		c.forget(v)
		v.value.Store(nil) // old entries of the queues still point to it
	}
	for i := range c.queue {
		c.queue[i].tidy(c.count[i], cacheSlot(i))
	}
}

func (c *valueCache) evict(v *version) {
	if v.slot != slotNone {
		c.forget(v)
		v.value.Store(nil)
	}
}

func (c *valueCache) forget(v *version) {
	if v.slot == slotNone {
		return
	}
	if v.slot == slotSuperseded {
		c.superseded -= v.cost()
	}
	c.used -= v.cost()
	c.count[v.slot]--
	v.slot = slotNone
}

func (c *valueCache) shrink() {
	for c.superseded > c.supersededBudget || c.used > c.budget && c.superseded > 0 {
		c.evictFrom(slotSuperseded)
	}
	for c.used > c.budget && c.count[slotLive] > 0 {
		c.evictFrom(slotLive)
	}
}

func (c *valueCache) evictFrom(slot cacheSlot) {
	v := c.queue[slot].pop()
	if v.slot != slot {
		return // an old entry: the version has changed its slot
	}
	if v.used.CompareAndSwap(true, false) {
		c.queue[slot].push(v)
		return
	}
	c.evict(v)
}

func (c *valueCache) bytes() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.used
}

// cost is the memory of a cached value with its slice header.
func (v *version) cost() int64 { return int64(v.size) + 24 }

// fifo is a queue in a ring buffer.
type fifo struct {
	items   []*version
	head, n int
}

func (q *fifo) push(v *version) {
	if q.n == len(q.items) {
		grown := make([]*version, max(64, 2*len(q.items)))
		for i := range q.n {
			grown[i] = q.items[(q.head+i)%len(q.items)]
		}
		q.items, q.head = grown, 0
	}
	q.items[(q.head+q.n)%len(q.items)] = v
	q.n++
}

func (q *fifo) pop() *version {
	v := q.items[q.head]
	q.items[q.head] = nil
	q.head = (q.head + 1) % len(q.items)
	q.n--
	return v
}

// tidy removes old entries once they are the greater part. They would keep compacted versions in memory.
func (q *fifo) tidy(live int, slot cacheSlot) {
	if q.n < 2*live+1024 {
		return
	}
	kept := make([]*version, 0, live+64)
	seen := make(map[*version]bool, live)
	for q.n > 0 {
		if v := q.pop(); v.slot == slot && !seen[v] {
			seen[v] = true
			kept = append(kept, v)
		}
	}
	*q = fifo{items: kept[:cap(kept)], n: len(kept)}
}
