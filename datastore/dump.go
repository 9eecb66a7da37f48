package datastore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// Dump has the live keys of one revision in memory, with their values and without their history. Only
// Continue changes it. [Engine.Reset] goes back to it.
type Dump struct {
	revision int64
	keys     []dumped        // by key
	leases   map[int64]int64 // TTLs in seconds by id, of leases with keys
	engine   *Engine         // the engine that the row ids are of; nil for a file
}

// dumped is a key of a Dump.
type dumped struct {
	sqlitefile.Row
	value []byte
}

// Revision returns the revision of the dump.
func (c *Dump) Revision() int64 { return c.revision }

// Continue makes the dump the beginning of another store: without the keys for which drop returns true, and
// with the revision raised ([backup.Above]), and by a margin more for each of the earlier stores.
func (c *Dump) Continue(drop func(key string) bool, earlier int64) error {
	revision := backup.Above(c.revision + earlier*backup.RevisionMargin)
	if revision > sqlitefile.MaxRevision {
		return fmt.Errorf("%w: revision %d is too high to be raised", ErrCorrupt, c.revision)
	}
	c.revision = revision
	c.keys = slices.DeleteFunc(c.keys, func(k dumped) bool { return drop(k.Key) })
	return nil
}

// Keys returns the number of keys.
func (c *Dump) Keys() int { return len(c.keys) }

// Each calls do with every key and its value in order, until do returns false. do must not modify a value.
func (c *Dump) Each(do func(key string, value []byte) bool) {
	for i := range c.keys {
		if !do(c.keys[i].Key, c.keys[i].value) {
			return
		}
	}
}

// newestTries is how often a state is read again after compaction has deleted a row that it needed.
const newestTries = 10

// ofNewest calls read with the newest state, again if compaction deletes a row of it meanwhile.
func (e *Engine) ofNewest(read func(*snapshot) error) error {
	for range newestTries {
		if err := read(e.snap.Load()); !errors.Is(err, sqlitefile.ErrRowMissing) {
			return err
		}
	}
	return fmt.Errorf("read all of the datastore: %w, again and again", ErrCompacted)
}

// Dump returns the present live keys. It reads values that are not in memory.
func (e *Engine) Dump(ctx context.Context) (c *Dump, err error) {
	err = e.ofNewest(func(s *snapshot) (err error) {
		c, err = e.dumpOf(ctx, s)
		return err
	})
	return c, err
}

func (e *Engine) dumpOf(ctx context.Context, snap *snapshot) (*Dump, error) {
	c := &Dump{revision: snap.revision, leases: map[int64]int64{}, engine: e, keys: make([]dumped, 0, snap.live.Len())}
	var err error
	snap.live.Scan(func(key string, v *version) bool {
		var value []byte
		if value, err = e.value(v); err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return false
		}
		c.keys = append(c.keys, dumped{v.Row, value})
		if v.Lease != 0 {
			c.leases[v.Lease] = 0
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
	// Leave out the keys of a lease that was revoked meanwhile.
	c.keys = slices.DeleteFunc(c.keys, func(k dumped) bool { return k.Lease != 0 && c.leases[k.Lease] == 0 })
	return c, nil
}

// ReadDump reads the live keys of the database at path, and verifies the checksum of every row. While a server in
// another process uses the database, the error is [sqlitefile.ErrBusy].
func ReadDump(ctx context.Context, path string) (*Dump, error) {
	var c *Dump
	err := sqlitefile.View(path, func(from *sqlitefile.Connection) (err error) {
		c, err = readDump(ctx, from, path)
		return err
	})
	return c, err
}

func readDump(ctx context.Context, from *sqlitefile.Connection, path string) (*Dump, error) {
	metas, err := from.Metas()
	if err != nil {
		return nil, sqlitefile.Explain(path, err)
	}
	if err := sqlitefile.CheckStop(path, metas); err != nil {
		return nil, err
	}
	c := &Dump{}
	if c.leases, err = from.Leases(); err != nil {
		return nil, sqlitefile.Explain(path, err)
	}
	newest := map[string]dumped{}
	var last, rows, sum int64
	err = from.EachRow(sqlitefile.AllRows, func(r sqlitefile.Row, value []byte, bad error) error {
		if rows++; rows%1024 == 0 && ctx.Err() != nil {
			return ctx.Err()
		}
		if bad != nil {
			return bad
		}
		last = r.ID
		sum += sqlitefile.RowSum(r.ID)
		if r.Tombstone() {
			delete(newest, r.Key)
			return nil
		}
		newest[r.Key] = dumped{r, value}
		return nil
	})
	if err != nil {
		if sqlitefile.IsSQLError(err) {
			return nil, sqlitefile.Explain(path, err)
		}
		return nil, err
	}
	if metas.Misses(rows, sum) {
		return nil, fmt.Errorf("%w: %s has %d rows, and the last stop left %d", ErrCorrupt, path, rows, metas["log_rows"])
	}
	c.revision = metas.Revision(last)
	for _, key := range sortedKeys(newest) {
		k := newest[key]
		if k.Lease != 0 && c.leases[k.Lease] <= 0 {
			return nil, fmt.Errorf("%w: %s: key %q has lease %d, which does not exist", ErrCorrupt, path, key, k.Lease)
		}
		c.keys = append(c.keys, k)
	}
	return c, nil
}

// WriteFile makes a database (0600) of the dump, as a backup does: at the revision of the dump, with everything
// before it compacted, and closed in order.
func (c *Dump) WriteFile(to string) (*backup.Result, error) {
	return backup.Place("", to, func(file string) (*backup.Result, error) {
		if err := c.build(file); err != nil {
			return nil, err
		}
		return &backup.Result{Revision: c.revision, Keys: int64(len(c.keys))}, nil
	})
}

func (c *Dump) build(file string) (err error) {
	b, err := sqlitefile.NewBuilder(file)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			b.Abandon()
		}
	}()
	for id, ttl := range c.leases {
		if err := b.Grant(id, ttl); err != nil {
			return err
		}
	}
	byID := slices.SortedFunc(slices.Values(c.keys), func(a, b dumped) int { return cmp.Compare(a.ID, b.ID) })
	for _, k := range byID {
		if err := b.Add(&k.Row, k.value); err != nil {
			return err
		}
	}
	metas := backup.Resume(c.revision)
	metas["revision"], metas["compact_revision"] = c.revision, c.revision
	return b.Finish(metas)
}

// initial returns the state of an engine that begins with the dump; nil is an empty dump.
func (c *Dump) initial() *initial {
	if c == nil {
		return &initial{index: newIndex(1)}
	}
	l := &initial{index: newIndex(c.revision), compacted: c.revision, leases: c.leases}
	for _, k := range c.keys {
		v := &version{Row: k.Row, size: int32(len(k.value))}
		v.value.Store(&k.value)
		l.live.Load(k.Key, v)
		l.bytes += v.bytes()
	}
	return l
}

// Backup writes the present state of the engine to the file to, also in mode Memory, but there without history.
func (e *Engine) Backup(ctx context.Context, to string) (*backup.Result, error) {
	if e.file != nil {
		return backup.Write(ctx, e.file, to)
	}
	d, err := e.Dump(ctx)
	if err != nil {
		return nil, err
	}
	return d.WriteFile(to)
}
