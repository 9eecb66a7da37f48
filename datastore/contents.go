package datastore

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"
)

// Contents are the keys that were there at one revision, with their values and
// without their history, all in memory. They do not change. [Engine.Reset] goes back
// to them.
type Contents struct {
	revision int64
	keys     []contained     // by key
	leases   map[int64]int64 // TTL in seconds by id, of those that have keys
	engine   *Engine         // whose row ids these are; nil: of a file
}

// contained is a key of Contents.
type contained struct {
	key     string
	id      int64 // of its row in the log
	create  int64
	version int64
	lease   int64
	value   []byte
}

// Revision is that of the store when it had these contents.
func (c *Contents) Revision() int64 { return c.revision }

// Keys is how many there are.
func (c *Contents) Keys() int { return len(c.keys) }

// Each calls do with every key and its value, in order, until it answers false. The
// values must not be modified.
func (c *Contents) Each(do func(key string, value []byte) bool) {
	for i := range c.keys {
		if !do(c.keys[i].key, c.keys[i].value) {
			return
		}
	}
}

// contentsTries is how often contents are read again that compaction was faster than.
const contentsTries = 10

// Contents are the keys that are there now. Values that only the disk has are read.
func (e *Engine) Contents(ctx context.Context) (*Contents, error) {
	for range contentsTries {
		c, err := e.contentsOf(ctx, e.snap.Load())
		if !errors.Is(err, errRowMissing) {
			return c, err
		}
	}
	return nil, fmt.Errorf("read all of the datastore: %w: it is compacted all the time", ErrCompacted)
}

func (e *Engine) contentsOf(ctx context.Context, snap *snapshot) (*Contents, error) {
	c := &Contents{revision: snap.revision, leases: map[int64]int64{}, engine: e, keys: make([]contained, 0, snap.live.Len())}
	var err error
	snap.live.Scan(func(key string, v *version) bool {
		var value []byte
		if value, err = e.value(v); err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return false
		}
		c.keys = append(c.keys, contained{key: key, id: v.id, create: v.create, version: v.version, lease: v.lease, value: value})
		if v.lease != 0 {
			c.leases[v.lease] = 0
		}
		return true
	})
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for id := range c.leases {
		if l := e.leases.find(id); l != nil {
			c.leases[id] = l.ttl
		}
	}
	// What a lease has taken along in this moment is gone here, too.
	c.keys = slices.DeleteFunc(c.keys, func(k contained) bool { return k.lease != 0 && c.leases[k.lease] == 0 })
	return c, nil
}

// ReadContents reads what the engine's database at path holds now, also while a
// server has it open. Every row's checksum is verified.
func ReadContents(ctx context.Context, path string) (*Contents, error) {
	var c *Contents
	err := viewEngine(path, func(from *connection) (err error) {
		c, err = readContents(ctx, from, path)
		return err
	})
	return c, err
}

func readContents(ctx context.Context, from *connection, path string) (*Contents, error) {
	metas, err := from.metas()
	if err != nil {
		return nil, explainSQL(path, err)
	}
	if err := checkStop(path, metas); err != nil {
		return nil, err
	}
	c := &Contents{leases: map[int64]int64{}}
	err = from.query(`SELECT id, ttl FROM lease`, func(row []driver.Value) error {
		id, _ := row[0].(int64)
		c.leases[id], _ = row[1].(int64)
		return nil
	})
	if err != nil {
		return nil, explainSQL(path, err)
	}
	var reader Engine // its rows are read as a start does, and nothing is opened
	reader.path = path
	newest := map[string]contained{}
	var last, rows, sum int64
	err = from.query(`SELECT id, key, flags, create_revision, version, lease, crc, value FROM log ORDER BY id`, func(row []driver.Value) error {
		if rows++; rows%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		v, value, err := reader.row(row)
		if err != nil {
			return err
		}
		last = v.id
		sum += rowSum(v.id)
		if v.tombstone() {
			delete(newest, v.key)
			return nil
		}
		newest[v.key] = contained{key: v.key, id: v.id, create: v.create, version: v.version, lease: v.lease, value: value}
		return nil
	})
	if err != nil {
		if sqliteCode(err) != 0 {
			return nil, explainSQL(path, err)
		}
		return nil, err
	}
	if stopStateOf(metas).closed() && (metas["log_rows"] != rows || metas["log_sum"] != sum) {
		return nil, fmt.Errorf("%w: %s has %d rows where the last stop left %d", ErrCorrupt, path, rows, metas["log_rows"])
	}
	c.revision = max(1, metas["revision"], metas["compact_revision"], last>>subBits)
	for _, key := range sortedKeys(newest) {
		k := newest[key]
		if k.lease != 0 && c.leases[k.lease] <= 0 {
			return nil, fmt.Errorf("%w: %s: key %q has lease %d, which is not there", ErrCorrupt, path, key, k.lease)
		}
		c.keys = append(c.keys, k)
	}
	return c, nil
}

// WriteFile makes a database of the contents at to, as a backup is: at their
// revision, with all before it compacted, closed in order, mode 0600.
func (c *Contents) WriteFile(to string, opts BackupOptions) (*Copy, error) {
	begin := time.Now()
	to, err := filepath.Abs(to)
	if err != nil {
		return nil, fmt.Errorf("write datastore: %w", err)
	}
	if taken, err := exists(to); err != nil {
		return nil, fmt.Errorf("write datastore: %w", err)
	} else if taken && !opts.Overwrite {
		return nil, fmt.Errorf("write datastore: %w: %s", ErrExists, to)
	}
	unfinished, err := newPartial(to)
	if err != nil {
		return nil, fmt.Errorf("write datastore: %w", err)
	}
	defer unfinished.remove()
	file := filepath.Join(unfinished.dir, "copy")
	if err := c.build(file); err != nil {
		return nil, fmt.Errorf("write datastore: %w", err)
	}
	if err := GiveName(file, to, opts.Overwrite); err != nil {
		return nil, fmt.Errorf("write datastore: %w", err)
	}
	out := &Copy{To: to, Revision: c.revision, Keys: int64(len(c.keys)), Took: time.Since(begin)}
	if info, err := os.Stat(to); err == nil {
		out.Bytes = info.Size()
	}
	return out, nil
}

func (c *Contents) build(file string) (err error) {
	b, err := newBuilder(file)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			b.abandon()
		}
	}()
	for id, ttl := range c.leases {
		if err := b.grant(id, ttl); err != nil {
			return err
		}
	}
	byID := slices.SortedFunc(slices.Values(c.keys), func(a, b contained) int { return cmp.Compare(a.id, b.id) })
	for _, k := range byID {
		v := &version{id: k.id, key: k.key, create: k.create, version: k.version, lease: k.lease, size: int32(len(k.value))}
		if err := b.add(v, k.value); err != nil {
			return err
		}
	}
	return b.finish(meta{"revision", c.revision}, meta{"compact_revision", c.revision})
}

// loaded is the state of an engine that begins with the contents; nil is the empty one.
func (c *Contents) loaded() *loaded {
	if c == nil {
		return &loaded{view: newView(1)}
	}
	l := &loaded{view: newView(c.revision), compacted: c.revision}
	for id, ttl := range c.leases {
		l.leases = append(l.leases, leaseChange{id: id, ttl: ttl})
	}
	for _, k := range c.keys {
		v := &version{id: k.id, key: k.key, create: k.create, version: k.version, lease: k.lease, size: int32(len(k.value))}
		v.value.Store(&k.value)
		l.live.Load(k.key, v)
		l.bytes += v.bytes()
	}
	return l
}
