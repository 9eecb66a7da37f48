package sqlitefile

import (
	"context"
	"errors"
	"net/url"
	"os"

	"github.com/karve-k8s/karve/internal/atomicfile"
)

// Unnamed is a copy of a closed database, to be read, in a file that has no name as soon as it has content: nothing of it is left on the disk, however the
// process ends. It is a [Source].
type Unnamed struct {
	path string
	c    *Connection
}

// NewUnnamed makes the file in dir. fill writes size bytes to it.
func NewUnnamed(dir string, size int64, fill func(*os.File) error) (_ *Unnamed, err error) {
	f, err := os.CreateTemp(dir, atomicfile.TempPattern)
	if err != nil {
		return nil, err
	}
	u := &Unnamed{path: f.Name()}
	defer func() {
		f.Close()
		if err != nil {
			u.Close()
		}
	}()
	// SQLite takes the size of an immutable file when it opens it, and reads nothing yet.
	if err := f.Truncate(size); err != nil {
		return nil, err
	}
	if u.c, err = Connect(u.path, url.Values{"mode": {"ro"}, "immutable": {"1"}}); err != nil {
		return nil, Explain(u.path, err)
	}
	if err := os.Remove(u.path); err != nil {
		return nil, err
	}
	if err := fill(f); err != nil {
		return nil, err
	}
	return u, nil
}

// Path returns the path that the file had.
func (u *Unnamed) Path() string { return u.path }

// View runs body with the connection, in one transaction. Call it once.
func (u *Unnamed) View(ctx context.Context, body func(context.Context, *Connection) error) error {
	return u.c.asOfNow(u.path, func() error {
		if err := checkIdentity(u.path, u.c); err != nil {
			return err
		}
		return body(ctx, u.c)
	})
}

// Close removes the file.
func (u *Unnamed) Close() error {
	var err error
	if u.c != nil {
		err = u.c.Close()
	}
	if gone := os.Remove(u.path); gone != nil && !os.IsNotExist(gone) {
		err = errors.Join(err, gone)
	}
	return err
}
