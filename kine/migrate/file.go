package migrate

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/kineimport"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
	"github.com/karve-k8s/karve/internal/atomicfile"
)

// file is a built-in datastore that is read. Its directory is locked, so no server uses it.
type file struct {
	path   string
	lock   *directory.Lock
	given  int64
	newest map[string]int64 // ids of rows
	ttls   map[int64]int64  // of leases
}

// locked locks a directory that no server uses.
func locked(dir string) (*directory.Lock, error) {
	lock, err := directory.Acquire(dir)
	if errors.Is(err, directory.ErrLocked) {
		return nil, fmt.Errorf("%w: stop the server first", err)
	}
	return lock, err
}

func readFile(ctx context.Context, dir string) (_ source, err error) {
	f := &file{path: filepath.Join(dir, datastore.EngineFile)}
	if there, err := directory.Exists(f.path); err != nil {
		return nil, err
	} else if !there {
		if err := kineimport.Waiting(dir); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s does not exist: no server has been started with this directory", f.path)
	}
	if f.lock, err = locked(dir); err != nil {
		return nil, err
	}
	if err = sqlitefile.Inspect(f.path); err == nil {
		err = f.readKeys(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, f.close())
	}
	return f, nil
}

// readKeys reads all rows, and finds the newest one of each key.
func (f *file) readKeys(ctx context.Context) error {
	return sqlitefile.ViewLocked(f.path, func(c *sqlitefile.Connection) error {
		metas, err := c.Metas()
		if err != nil {
			return sqlitefile.Explain(f.path, err)
		}
		if f.ttls, err = c.Leases(); err != nil {
			return sqlitefile.Explain(f.path, err)
		}
		f.newest = map[string]int64{}
		var last, rows, sum int64
		err = f.eachRow(ctx, c, func(r sqlitefile.Row, _ []byte) error {
			last, rows, sum = r.ID, rows+1, sum+sqlitefile.RowSum(r.ID)
			if r.Tombstone() {
				delete(f.newest, r.Key)
			} else {
				f.newest[r.Key] = r.ID
			}
			return nil
		})
		if err != nil {
			return err
		}
		if metas.Misses(rows, sum) {
			return fmt.Errorf("%w: %s has %d rows, and the last stop left %d", sqlitefile.ErrCorrupt, f.path, rows, metas["log_rows"])
		}
		f.given = metas.Given(last)
		return nil
	})
}

func (f *file) eachRow(ctx context.Context, c *sqlitefile.Connection, do func(sqlitefile.Row, []byte) error) error {
	err := c.EachRow(sqlitefile.AllRows, func(r sqlitefile.Row, value []byte, bad error) error {
		if err := ctx.Err(); err != nil {
			return err
		}
		if bad != nil {
			return bad
		}
		return do(r, value)
	})
	if sqlitefile.IsSQLError(err) {
		return sqlitefile.Explain(f.path, err)
	}
	return err
}

func (f *file) revision() int64 { return f.given }

func (f *file) outside() int64 { return 0 }

func (f *file) keys() int64 { return int64(len(f.newest)) }

// each reads all rows once more: values are not kept in memory.
func (f *file) each(ctx context.Context, do func(entry) error) error {
	read := 0
	err := sqlitefile.ViewLocked(f.path, func(c *sqlitefile.Connection) error {
		return f.eachRow(ctx, c, func(r sqlitefile.Row, value []byte) error {
			if f.newest[r.Key] != r.ID {
				return nil
			}
			read++
			ttl := f.ttls[r.Lease]
			if r.Lease != 0 && ttl <= 0 {
				return fmt.Errorf("%w: %s: key %q has lease %d, which does not exist", sqlitefile.ErrCorrupt, f.path, r.Key, r.Lease)
			}
			return do(entry{r.Key, value, ttl})
		})
	})
	if err == nil && read != len(f.newest) {
		err = fmt.Errorf("%s has been changed meanwhile: %d of %d keys are left", f.path, read, len(f.newest))
	}
	return err
}

// changed returns nothing: the directory is locked.
func (f *file) changed(context.Context) (string, error) { return "", nil }

func (f *file) close() error { return f.lock.Close() }

// newFile is a built-in datastore that is filled. It has another name until it is complete.
type newFile struct {
	path, fresh string
	lock        *directory.Lock
	b           *sqlitefile.Builder
	next        int64 // revision
	placed      bool
	leases      map[int64]leased // by TTL
}

// leased is a lease that gets the next keys with its TTL.
type leased struct{ id, keys int64 }

// leaseKeys is how many keys a lease gets, as the API server does it (k8s.io/apiserver
// pkg/storage/etcd3/lease_manager.go).
const leaseKeys = 1000

func fillFile(dir string, first int64) (_ target, err error) {
	path := filepath.Join(dir, datastore.EngineFile)
	f := &newFile{path: path, fresh: path + ".migrating", next: first, leases: map[int64]leased{}}
	if f.lock, err = locked(dir); err != nil {
		return nil, err
	}
	if err = kineimport.CheckEmpty(f.lock); err == nil {
		f.b, err = sqlitefile.NewBuilder(f.fresh) // over one that was not finished
	}
	if err != nil {
		return nil, errors.Join(err, f.lock.Close())
	}
	return f, nil
}

func (f *newFile) put(_ context.Context, e entry) error {
	row := &sqlitefile.Row{ID: sqlitefile.RowID(f.next, 0), Key: e.key, Create: f.next, Version: 1}
	if f.next > sqlitefile.MaxRevision {
		return fmt.Errorf("revision %d is too high for the built-in datastore", f.next)
	}
	if e.ttl > 0 {
		l := f.leases[e.ttl]
		if l.keys%leaseKeys == 0 {
			l.id = f.next // no other lease has it
			if err := f.b.Grant(l.id, e.ttl); err != nil {
				return err
			}
		}
		l.keys++
		f.leases[e.ttl] = l
		row.Lease = l.id
	}
	f.next++
	return f.b.Add(row, e.value)
}

func (f *newFile) each(ctx context.Context, do func(entry) error) error {
	last := f.next - 1
	if err := f.b.Finish(sqlitefile.Metas{"revision": last, "compact_revision": last}); err != nil {
		return err
	}
	written := &file{path: f.fresh}
	if err := written.readKeys(ctx); err != nil {
		return err
	}
	return written.each(ctx, do)
}

func (f *newFile) commit(context.Context) (int64, error) {
	if err := atomicfile.Rename(f.fresh, f.path); err != nil {
		return 0, err
	}
	f.placed = true
	return f.next - 1, nil
}

func (f *newFile) abandon() string { return nothingLeft }

func (f *newFile) close() error {
	if !f.placed {
		f.b.Abandon()
	}
	return f.lock.Close()
}
