package sqlitefile

import (
	"context"
	"errors"
	"net/url"
)

// View runs body with a connection of its own, in one read transaction. It delays no writer, but
// meanwhile the WAL is not copied back, so it grows. The context of body also ends with the
// engine.
func (f *File) View(ctx context.Context, body func(context.Context, *Connection) error) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f.gate.Lock()
	if f.closing {
		f.gate.Unlock()
		return ErrClosed
	}
	f.long++
	f.longReads.Add(1)
	defer context.AfterFunc(f.closed, func() { cancel(ErrClosed) })()
	f.gate.Unlock()
	defer func() {
		f.gate.Lock()
		f.long--
		f.gate.Unlock()
		f.longReads.Done()
		if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrClosed) {
			err = cause
		}
	}()
	c, err := f.connect(url.Values{"mode": {"rw"}, "_pragma": {"busy_timeout(10000)", "wal_autocheckpoint(0)", "cache_size(-8192)"}})
	if err == nil {
		defer c.Close()
	}
	if moved := f.unmoved(); moved != nil { // it may be another's, of which nothing has been read yet
		return moved
	}
	if err != nil {
		return Explain(f.path, err)
	}
	// The WAL stays even if this connection is the last one to close.
	if err := c.PersistWAL(true); err != nil {
		return Explain(f.path, err)
	}
	return c.asOfNow(f.path, func() error { return body(ctx, c) })
}

// endLongReads refuses new long reads, cancels those that are running, and waits for them.
func (f *File) endLongReads() {
	f.gate.Lock()
	f.closing = true
	f.endReads()
	f.gate.Unlock()
	f.longReads.Wait()
}
