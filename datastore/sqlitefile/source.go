package sqlitefile

import "context"

// Source is a database of the engine that can be read in one transaction: a closed file, or the
// file of a running engine.
type Source interface {
	Path() string
	View(ctx context.Context, body func(context.Context, *Connection) error) error
}

// ClosedFile is the path of a database that no engine of this process has open. It is a [Source].
type ClosedFile string

// Path returns the path of the database.
func (f ClosedFile) Path() string { return string(f) }

// View runs body with a connection that reads the file in one transaction. While a server in
// another process uses the file, the error is [ErrBusy].
func (f ClosedFile) View(ctx context.Context, body func(context.Context, *Connection) error) error {
	return View(string(f), func(c *Connection) error { return body(ctx, c) })
}

// Path returns the path of the database.
func (f *File) Path() string { return f.path }
