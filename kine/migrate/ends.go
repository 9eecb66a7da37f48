package migrate

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/kine/external"
)

// same tells whether both ends have the same name. The same datastore by another name is not empty.
func (e End) same(other End) bool {
	switch {
	case e.Database != nil && other.Database != nil:
		return e.Database.Same(other.Database)
	case e.Etcd != nil && other.Etcd != nil:
		return slices.ContainsFunc(e.Etcd, func(one string) bool { return slices.Contains(other.Etcd, one) })
	case e.Dir != "" && other.Dir != "":
		return filepath.Clean(e.Dir) == filepath.Clean(other.Dir) || atomicfile.Same(e.Dir, other.Dir)
	}
	return false
}

// failed is an error of this end. Those of package external begin with the location.
func (e End) failed(err error) error {
	if strings.HasPrefix(err.Error(), e.Where) {
		return fmt.Errorf("%s %w", e.Option, err)
	}
	return fmt.Errorf("%s %s: %w", e.Option, e.Where, err)
}

func (e End) read(ctx context.Context) (source, error) {
	switch {
	case e.Database != nil:
		return readTable(ctx, e)
	case e.Etcd != nil:
		return readEtcd(ctx, e)
	}
	return readFile(ctx, e.Dir)
}

// fill prepares an empty datastore whose revisions are above those of src.
func (e End) fill(ctx context.Context, from End, src source, progress func(Progress)) (target, error) {
	switch {
	case e.Database != nil:
		return fillTable(ctx, e, from, src)
	case e.Etcd != nil:
		return fillEtcd(ctx, e, from, src, progress)
	}
	return fillFile(e.Dir, src.revision()+1)
}

func (e End) tableOptions() external.Options {
	return external.Options{CAFile: e.CAFile, CertFile: e.CertFile, KeyFile: e.KeyFile}
}

// table is both ends in an SQL database.
type table struct{ *external.Table }

func readTable(ctx context.Context, e End) (source, error) {
	t, err := e.Database.ReadTable(ctx, e.tableOptions())
	if err != nil {
		return nil, err
	}
	return table{t}, nil
}

func fillTable(ctx context.Context, e, from End, src source) (target, error) {
	t, err := e.Database.WriteTable(ctx, e.tableOptions(), src.revision(), isOwn)
	if full := (*external.NotEmptyError)(nil); errors.As(err, &full) {
		if from.Database != nil {
			return nil, fmt.Errorf("%w, and may be the source itself (%s %s) by another name. Name another database", err, from.Option, from.Where)
		}
		return nil, fmt.Errorf("%w. Name another database, or drop the table if nobody needs it", err)
	}
	if err != nil {
		return nil, err
	}
	return filled{table{t}}, nil
}

func (t table) revision() int64 { return t.Revision() }

func (t table) outside() int64 { return 0 }

func (t table) keys() (n int64) {
	t.EachKey(func(string, int64) { n++ })
	return n
}

func (t table) each(ctx context.Context, do func(entry) error) error {
	return t.Each(ctx, func(key string, value []byte, ttl int64) error { return do(entry{key, value, ttl}) })
}

func (t table) changed(ctx context.Context) (string, error) { return t.Changed(ctx) }

func (t table) close() error { return t.Close() }

// filled is a table that is a target: all of it is one transaction.
type filled struct{ table }

func (t filled) put(ctx context.Context, e entry) error { return t.Put(ctx, e.key, e.value, e.ttl) }

func (t filled) each(ctx context.Context, do func(entry) error) error {
	if err := t.Reread(ctx); err != nil {
		return err
	}
	return t.table.each(ctx, do)
}

func (t filled) commit(ctx context.Context) (int64, error) {
	revision, err := t.Commit(ctx)
	if errors.Is(err, external.ErrUncertain) {
		err = uncertain{err, "migrate again: if the target is not empty then, all of it is there, and verified"}
	}
	return revision, err
}

func (t filled) abandon() string { return nothingLeft }

// nothingLeft is what remains of a migration that is one step.
const nothingLeft = "nothing has been migrated, and the target is as empty as before"
