package sqlitefile

import (
	"net/url"
)

// Progress is told how far a long piece of work has come, in units of which
// total is all there are (0: not known). It is called often and must return soon.
type Progress func(done, total int64)

func (p Progress) Report(done, total int64) {
	if p != nil {
		p(done, total)
	}
}

// builder writes a whole new file of the engine under a name that no start looks
// at. It syncs nothing before the end: until its caller has renamed it, the file
// stands for nothing.
type Builder struct {
	path string
	c    *Connection
	open bool // in a transaction
	Rows int64
	Sum  int64
}

// builderRows is how many rows a transaction of a builder has.
const builderRows = 2000

func NewBuilder(path string) (*Builder, error) {
	if err := makeFile(path); err != nil {
		return nil, err
	}
	c, err := Connect(path, url.Values{"_pragma": {"synchronous(OFF)", "cache_size(-8192)"}})
	if err != nil {
		return nil, Explain(path, err)
	}
	return &Builder{path: path, c: c}, nil
}

func (b *Builder) begin() error {
	if b.open {
		return nil
	}
	if err := b.c.Exec("BEGIN IMMEDIATE"); err != nil {
		return Explain(b.path, err)
	}
	b.open = true
	return nil
}

func (b *Builder) commit() error {
	if !b.open {
		return nil
	}
	b.open = false
	if err := b.c.Exec("COMMIT"); err != nil {
		return Explain(b.path, err)
	}
	return nil
}

// Add writes a row of the log; ids must rise.
func (b *Builder) Add(r *Row, value []byte) error {
	if err := b.begin(); err != nil {
		return err
	}
	if err := b.c.insert(r, value); err != nil {
		return Explain(b.path, err)
	}
	b.Rows++
	b.Sum += RowSum(r.ID)
	if b.Rows%builderRows == 0 {
		return b.commit()
	}
	return nil
}

// Grant writes a lease.
func (b *Builder) Grant(id, ttl int64) error {
	if err := b.begin(); err != nil {
		return err
	}
	if err := b.c.Grant(id, ttl); err != nil {
		return Explain(b.path, err)
	}
	return nil
}

// SetMetas writes rows of the meta table.
func (b *Builder) SetMetas(metas Metas) error {
	if err := b.begin(); err != nil {
		return err
	}
	if err := b.c.SetMetas(metas); err != nil {
		return Explain(b.path, err)
	}
	return nil
}

// Finish makes the file what a clean stop leaves, and durable.
func (b *Builder) Finish(metas Metas) error {
	if err := b.SetMetas(metas); err != nil {
		return err
	}
	if err := b.SetMetas(Metas{"log_rows": b.Rows, "log_sum": b.Sum, "clean": int64(stopClosed)}); err != nil {
		return err
	}
	if err := b.commit(); err != nil {
		return err
	}
	c := b.c
	b.c = nil
	if err := c.Close(); err != nil {
		return Explain(b.path, err)
	}
	return Settle(b.path)
}

// Abandon removes the file of a builder that has not finished.
func (b *Builder) Abandon() {
	if b.c != nil {
		b.c.Close()
	}
	Remove(b.path)
}
