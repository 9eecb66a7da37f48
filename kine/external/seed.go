package external

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/k3s-io/kine/pkg/query"
	"github.com/k3s-io/kine/pkg/server"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// locked does something in one transaction on the writer's database, under the lock for writes.
func (b *Backend) locked(ctx context.Context, do func(*sql.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, connectLimit+writeLimit)
	defer cancel()
	conn, err := connected(ctx, b.writer.table.primary())
	if err != nil {
		return err
	}
	defer conn.Close()
	defer conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // MySQL takes the lock back with the connection
	tx, err := conn.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
	if err != nil {
		return err
	}
	defer tx.Rollback() // fails after a commit
	if err := b.external.kind.lock(ctx, tx); err != nil {
		return err
	}
	if err := do(tx); err != nil {
		return err
	}
	return tx.Commit()
}

// goOnAfter makes the next revision follow one.
func (k *driver) goOnAfter(ctx context.Context, tx *sql.Tx, revision int64) error {
	if k.raise == "" {
		return nil
	}
	_, err := tx.ExecContext(ctx, fmt.Sprint(k.raise, revision, ")"))
	return err
}

// Empty reports whether no key begins with prefix, besides except and kine's own, which every start creates.
func (b *Backend) Empty(ctx context.Context, prefix, except string) (bool, error) {
	_, kvs, err := b.List(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), 3, 0, true)
	other := func(kv *server.KeyValue) bool { return kv.Key != server.HealthKey && kv.Key != except }
	return err == nil && !slices.ContainsFunc(kvs, other), err
}

// errNotEmpty means that another server was faster.
var errNotEmpty = errors.New("the datastore is not empty")

// CreateAll writes all objects, keys with their values, in one transaction. If a key with the prefix, besides
// except, is or was there, it writes none: another server was faster.
func (b *Backend) CreateAll(ctx context.Context, prefix, except string, objects iter.Seq2[string, []byte]) error {
	kind := b.external.kind
	exists := query.New("SELECT EXISTS (SELECT 1 FROM kine WHERE name >= ? AND name < ? AND name <> ? AND name <> ?)", kind.param, kind.numbered, "Exists")
	known, newest := b.newest.Load(), int64(0)
	err := b.locked(ctx, func(tx *sql.Tx) error {
		var there bool
		var before, above, all int64
		if err := tx.QueryRowContext(ctx, exists.Query, prefix, clientv3.GetPrefixRangeEnd(prefix), server.HealthKey, except).Scan(&there); err != nil {
			return err
		}
		if there {
			return errNotEmpty
		}
		if err := tx.QueryRowContext(ctx, "SELECT COALESCE(MAX(id), 0) FROM kine").Scan(&before); err != nil {
			return err
		}
		t := &Table{external: b.external, tx: tx, numbered: kind.numbered, lease: leaseColumn, given: true}
		for key, value := range objects {
			if err := t.put(ctx, key, value, 0); err != nil {
				return err
			}
			all++
		}
		if err := t.flush(ctx); err != nil {
			return err
		}
		err := tx.QueryRowContext(ctx, fmt.Sprint("SELECT COUNT(*), COALESCE(MAX(id), 0) FROM kine WHERE id > ", before)).Scan(&above, &newest)
		if err == nil && (before < known || above < all) { // no revision is used twice
			err = errBehind
		}
		return err
	})
	if errors.Is(err, errNotEmpty) {
		return nil
	}
	if err != nil {
		return b.status(ctx, err)
	}
	b.advance(newest)
	return nil
}
