package sqlitefile

import "context"

// Source is a database of the engine that can be read as of one moment: a file, or that of a
// running engine.
type Source interface {
	Path() string
	View(ctx context.Context, body func(context.Context, *Connection) error) error
}

// ClosedFile is the Source of a database that no engine of this process has open.
type ClosedFile string

// Path is that of the database.
func (f ClosedFile) Path() string { return string(f) }

// View runs body with a connection that reads the file. Beside a server in another process the
// error is [ErrBusy].
func (f ClosedFile) View(ctx context.Context, body func(context.Context, *Connection) error) error {
	return View(string(f), func(c *Connection) error { return body(ctx, c) })
}

// Path is that of the database.
func (f *File) Path() string { return f.path }
