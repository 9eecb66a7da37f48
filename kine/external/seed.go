package external

import (
	"context"
	"errors"
	"iter"
	"slices"

	"github.com/k3s-io/kine/pkg/server"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// Empty reports whether no key begins with prefix, besides except and kine's own, which every start creates.
func (b *Backend) Empty(ctx context.Context, prefix, except string) (bool, error) {
	_, kvs, err := b.List(ctx, prefix, clientv3.GetPrefixRangeEnd(prefix), 3, 0, true)
	other := func(kv *server.KeyValue) bool { return kv.Key != server.HealthKey && kv.Key != except }
	return err == nil && !slices.ContainsFunc(kvs, other), err
}

// CreateAll writes all objects, keys with their values, in one transaction. If a key with the prefix, besides
// except, is or was there, it writes none: another server was faster.
func (b *Backend) CreateAll(ctx context.Context, prefix, except string, objects iter.Seq2[string, []byte]) error {
	var all []*write
	for key, value := range objects {
		all = append(all, &write{ctx: ctx, key: key, created: true, value: value})
	}
	if len(all) == 0 {
		return nil
	}
	revisions, err := b.writer.table.insert(ctx, all, &keyRange{prefix, clientv3.GetPrefixRangeEnd(prefix), except}, b.newest.Load())
	if errors.Is(err, errNotEmpty) {
		return nil
	}
	if err != nil {
		return b.status(ctx, err)
	}
	b.advance(slices.Max(revisions))
	return nil
}
