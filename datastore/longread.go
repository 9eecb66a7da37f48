package datastore

import (
	"context"
	"errors"
	"net/url"

	"modernc.org/sqlite"
)

// longRead runs body with a connection of its own that reads the database of this engine
// as of one moment. It holds up no writer, but the log is not copied back meanwhile, so it
// grows. ctx ends with the engine, too.
func (d *disk) longRead(ctx context.Context, body func(context.Context, *connection) error) (err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	d.gate.Lock()
	if d.closing {
		d.gate.Unlock()
		return ErrClosed
	}
	d.long++
	d.longReads.Add(1)
	defer context.AfterFunc(d.closed, func() { cancel(ErrClosed) })()
	d.gate.Unlock()
	defer func() {
		d.gate.Lock()
		d.long--
		d.gate.Unlock()
		d.longReads.Done()
		if cause := context.Cause(ctx); err != nil && errors.Is(cause, ErrClosed) {
			err = cause
		}
	}()
	c, err := d.connect(url.Values{"_pragma": {"busy_timeout(10000)", "wal_autocheckpoint(0)", "cache_size(-8192)"}})
	if err != nil {
		return explainSQL(d.path, err)
	}
	defer c.close()
	// Should it be the last one to close, the log stays.
	if _, err := c.Conn.(sqlite.FileControl).FileControlPersistWAL("main", 1); err != nil {
		return explainSQL(d.path, err)
	}
	return c.asOfNow(d.path, func() error { return body(ctx, c) })
}

// endLongReads cancels those that are under way, waits for them, and refuses new ones.
func (d *disk) endLongReads() {
	d.gate.Lock()
	d.closing = true
	d.gate.Unlock()
	if d.endReads != nil {
		d.endReads()
	}
	d.longReads.Wait()
}
