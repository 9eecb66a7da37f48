package datastore

import (
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
)

// Progress is told how far a long piece of work has come, in units of which
// total is all there are (0: not known). It is called often and must return soon.
type Progress func(done, total int64)

func (p Progress) report(done, total int64) {
	if p != nil {
		p(done, total)
	}
}

// builder writes a whole new file of the engine under a name that no start looks
// at. It syncs nothing before the end: until its caller has renamed it, the file
// stands for nothing.
type builder struct {
	path string
	c    *connection
	open bool // in a transaction
	rows int64
	sum  int64
}

// builderRows is how many rows a transaction of a builder has.
const builderRows = 2000

func newBuilder(path string) (*builder, error) {
	if err := makeFile(path); err != nil {
		return nil, err
	}
	c, err := (&disk{path: path}).connect(url.Values{"_pragma": {"synchronous(OFF)", "cache_size(-8192)"}})
	if err != nil {
		return nil, explainSQL(path, err)
	}
	return &builder{path: path, c: c}, nil
}

func (b *builder) exec(query string, args ...driver.Value) error {
	if !b.open {
		if err := b.c.exec("BEGIN IMMEDIATE"); err != nil {
			return explainSQL(b.path, err)
		}
		b.open = true
	}
	if err := b.c.exec(query, args...); err != nil {
		return explainSQL(b.path, err)
	}
	return nil
}

func (b *builder) commit() error {
	if !b.open {
		return nil
	}
	b.open = false
	if err := b.c.exec("COMMIT"); err != nil {
		return explainSQL(b.path, err)
	}
	return nil
}

// add writes a row of the log; ids must rise.
func (b *builder) add(v *version, value []byte) error {
	var stored driver.Value
	if !v.tombstone() {
		if value == nil {
			value = []byte{}
		}
		stored = value
	}
	if err := b.exec(insertSQL, v.id, []byte(v.key), v.flags(), v.create, v.version, v.lease, v.checksum(value), stored); err != nil {
		return err
	}
	b.rows++
	b.sum += rowSum(v.id)
	if b.rows%builderRows == 0 {
		return b.commit()
	}
	return nil
}

func (b *builder) grant(id, ttl int64) error { return b.exec(grantSQL, id, ttl) }

// finish makes the file what a clean stop leaves, and durable.
func (b *builder) finish(metas ...meta) error {
	for _, m := range append(metas, meta{"log_rows", b.rows}, meta{"log_sum", b.sum}, meta{"clean", 1}) {
		if err := b.exec(metaSQL, m.name, m.value); err != nil {
			return err
		}
	}
	if err := b.commit(); err != nil {
		return err
	}
	c := b.c
	b.c = nil
	if err := c.close(); err != nil {
		return explainSQL(b.path, err)
	}
	return settle(b.path)
}

// abandon removes the file of a builder that has not finished.
func (b *builder) abandon() {
	if b.c != nil {
		b.c.close()
	}
	removeFile(b.path)
}

// settle makes a database that nobody has open durable, once it is all in one
// file.
func settle(path string) error {
	if err := wholeFile(path); err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil {
		return fmt.Errorf("sync %s: %w", path, err)
	}
	return nil
}

// wholeFile checks that a database which was closed needs no log beside it.
func wholeFile(path string) error {
	for _, suffix := range []string{"-wal", "-journal"} {
		info, err := os.Stat(path + suffix)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if info.Size() > 0 {
			return fmt.Errorf("%s was not closed in order: %s%s is still there (has another process opened it?)", path, path, suffix)
		}
		if err := os.Remove(path + suffix); err != nil {
			return err
		}
	}
	if err := os.Remove(path + "-shm"); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
