package sqlitefile

import (
	"context"
	"errors"
	"net/url"
)

// View runs body with a connection of its own that reads the database of this engine
// as of one moment. It holds up no writer, but the log is not copied back meanwhile, so it
// grows. ctx ends with the engine, too.
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
	c, err := f.connect(url.Values{"_pragma": {"busy_timeout(10000)", "wal_autocheckpoint(0)", "cache_size(-8192)"}})
	if err != nil {
		return Explain(f.path, err)
	}
	defer c.Close()
	// Should it be the last one to close, the WAL stays.
	if err := c.PersistWAL(true); err != nil {
		return Explain(f.path, err)
	}
	return c.asOfNow(f.path, func() error { return body(ctx, c) })
}

// endLongReads cancels those that are under way, waits for them, and refuses new ones.
func (f *File) endLongReads() {
	f.gate.Lock()
	f.closing = true
	f.endReads()
	f.gate.Unlock()
	f.longReads.Wait()
}
