package sqlitefile

import (
	"net/url"
	"time"
)

// Progress is called with how far a long operation has come: done of total units; total is 0 if
// it is not known. It is called often and must return soon.
type Progress func(done, total int64)

// Report calls p, unless it is nil.
func (p Progress) Report(done, total int64) {
	if p != nil {
		p(done, total)
	}
}

// Meanwhile reports what measure returns, at that interval, until stop is called. It is for an operation that reports
// nothing itself.
func (p Progress) Meanwhile(every time.Duration, measure func() (done, total int64)) (stop func()) {
	if p == nil {
		return func() {}
	}
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				p(measure())
			case <-end:
				return
			}
		}
	}()
	return func() { close(end); <-ended }
}

// Builder writes a new database under a name that no start reads. It syncs nothing before the
// end, because the file has no meaning until its caller has renamed it.
type Builder struct {
	path string
	c    *Connection
	open bool  // in a transaction
	Rows int64 // added so far
	Sum  int64 // of their ids; see RowSum
}

// builderRows is how many rows one transaction of a Builder has.
const builderRows = 2000

// NewBuilder begins a database at path, and replaces an unfinished one there. Call Finish or
// Abandon in the end.
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

// Add writes a row of the log table. The ids must rise.
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

// Grant writes a row of the lease table.
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

// Finish writes the last rows of the meta table, marks the database as closed in order, and
// makes it durable.
func (b *Builder) Finish(metas Metas) error {
	if err := b.SetMetas(metas); err != nil {
		return err
	}
	if err := b.begin(); err != nil {
		return err
	}
	if err := b.c.SetClosed(b.Rows, b.Sum); err != nil {
		return Explain(b.path, err)
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

// Abandon removes the database of a Builder that has not finished.
func (b *Builder) Abandon() {
	if b.c != nil {
		b.c.Close()
	}
	Remove(b.path)
}
