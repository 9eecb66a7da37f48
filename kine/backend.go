package kine

import (
	"context"
	"math/rand/v2"
	"os"
	"sync"

	"github.com/k3s-io/kine/pkg/server"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"

	"github.com/karve-k8s/karve/datastore"
)

// maxRequest is the largest write, key and value together: etcd's default for
// --max-request-bytes, so that an object that fits here fits there.
const maxRequest = 1536 * 1024

// Backend is the engine as kine's bridge wants it. The contract is that of
// kine's server.Backend as its bridge relies on it (kine pkg/server); DESIGN.md
// lists what that is. Values that it answers are shared with the engine's memory:
// nobody may change them.
type Backend struct {
	engine *datastore.Engine

	mu      sync.Mutex
	moved   sync.Cond // some watch has handed over more, or ended
	watches map[*watch]bool
}

var _ server.Backend = (*Backend)(nil)

// NewBackend makes a backend of an engine, which the caller closes.
func NewBackend(engine *datastore.Engine) *Backend {
	b := &Backend{engine: engine, watches: map[*watch]bool{}}
	b.moved.L = &b.mu
	return b
}

// Start has nothing to do: an open engine runs.
func (b *Backend) Start(context.Context) error { return nil }

// Get reads one key; nil if it is not there.
func (b *Backend) Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	resp, err := b.engine.Range(ctx, datastore.RangeRequest{Key: key, Revision: revision, KeysOnly: keysOnly})
	if err != nil {
		return b.engine.Revision(), nil, toStatus(err)
	}
	return resp.Revision, first(resp), nil
}

// List reads a range in order.
func (b *Backend) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	rev, kvs, _, err := b.page(ctx, key, end, limit, revision, keysOnly)
	return rev, kvs, err
}

// page is List and Count in one: how many keys there are whatever the limit.
func (b *Backend) page(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, int64, error) {
	resp, err := b.engine.Range(ctx, datastore.RangeRequest{Key: key, End: end, Revision: revision, Limit: limit, KeysOnly: keysOnly})
	if err != nil {
		return b.engine.Revision(), nil, 0, toStatus(err)
	}
	kvs := make([]*server.KeyValue, len(resp.KVs))
	block := make([]server.KeyValue, len(resp.KVs))
	for i := range resp.KVs {
		block[i] = keyValue(&resp.KVs[i])
		kvs[i] = &block[i]
	}
	return resp.Revision, kvs, resp.Count, nil
}

// Count counts a range, at a cost that does not depend on the number of keys.
func (b *Backend) Count(ctx context.Context, key, end string, revision int64) (int64, int64, error) {
	resp, err := b.engine.Range(ctx, datastore.RangeRequest{Key: key, End: end, Revision: revision, CountOnly: true})
	if err != nil {
		return b.engine.Revision(), 0, toStatus(err)
	}
	return resp.Revision, resp.Count, nil
}

// Create puts a key that is not there. If it is, the error is exactly
// server.ErrKeyExists.
func (b *Backend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	put, undo, err := b.put(ctx, key, value, lease)
	if err != nil {
		return b.engine.Revision(), err
	}
	resp, err := b.engine.Txn(ctx, datastore.TxnRequest{
		Compare: []datastore.Compare{{Key: key, Target: datastore.CompareModRevision}},
		Then:    []datastore.Op{{Put: put}},
	})
	if err != nil {
		undo()
		return b.engine.Revision(), toStatus(err)
	}
	if !resp.Succeeded {
		undo()
		return resp.Revision, server.ErrKeyExists
	}
	return resp.Revision, nil
}

// Update puts a key that is at revision. If it is not, the answer is the key as
// it is, or nil, with false and no error.
func (b *Backend) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	if revision <= 0 { // no key is at 0: the compare would create it
		rev, kv, err := b.Get(ctx, key, 0, false)
		return rev, kv, false, err
	}
	put, undo, err := b.put(ctx, key, value, lease)
	if err != nil {
		return b.engine.Revision(), nil, false, err
	}
	resp, err := b.engine.Txn(ctx, datastore.TxnRequest{
		Compare: []datastore.Compare{{Key: key, Target: datastore.CompareModRevision, Number: revision}},
		Then:    []datastore.Op{{Put: put}, {Range: &datastore.RangeRequest{Key: key}}},
		Else:    []datastore.Op{{Range: &datastore.RangeRequest{Key: key}}},
	})
	if err != nil {
		undo()
		return b.engine.Revision(), nil, false, toStatus(err)
	}
	if !resp.Succeeded {
		undo()
	}
	return resp.Revision, first(resp.Responses[len(resp.Responses)-1].Range), resp.Succeeded, nil
}

// Delete removes a key that is at revision, or at any if that is 0. The answer is
// the key as it was or, with false, as it is; nil and false if there is none.
func (b *Backend) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	req := datastore.TxnRequest{
		Then: []datastore.Op{{Delete: &datastore.DeleteRequest{Key: key, PrevKV: true}}},
		Else: []datastore.Op{{Range: &datastore.RangeRequest{Key: key}}},
	}
	if revision != 0 {
		req.Compare = []datastore.Compare{{Key: key, Target: datastore.CompareModRevision, Number: revision}}
	}
	resp, err := b.engine.Txn(ctx, req)
	if err != nil {
		return b.engine.Revision(), nil, false, toStatus(err)
	}
	if !resp.Succeeded {
		return resp.Revision, first(resp.Responses[0].Range), false, nil
	}
	deleted := resp.Responses[0].Delete
	if len(deleted.Prev) == 0 {
		return resp.Revision, nil, false, nil
	}
	kv := keyValue(&deleted.Prev[0])
	return resp.Revision, &kv, true, nil
}

// DbSize is the size of the database on the disk with its log, in bytes.
func (b *Backend) DbSize(context.Context) (int64, error) {
	stats := b.engine.Stats()
	info, err := os.Stat(b.engine.Path())
	if err != nil { // in memory
		return stats.CacheBytes, nil
	}
	return info.Size() + stats.WALBytes, nil
}

// CurrentRevision is the newest durable revision.
func (b *Backend) CurrentRevision(context.Context) (int64, error) { return b.engine.Revision(), nil }

// Compact lets go of history up to revision.
func (b *Backend) Compact(ctx context.Context, revision int64) (int64, error) {
	err := b.engine.Compact(ctx, revision, false)
	return b.engine.Revision(), toStatus(err)
}

// A lease of the engine carries its TTL in the lower half of its id, and a random
// number above. kine knows no leases: its bridge answers a grant with the TTL as
// the id, and that is what comes back with a write; such a number is all lower
// half. So both kinds can be told apart, and the TTL be told from either.
const maxTTL = 1<<31 - 1

// Grant makes a lease that several keys can share: the id is a lease argument of
// Create and Update as well as a TTL in seconds is.
func (b *Backend) Grant(ctx context.Context, ttl int64) (int64, error) {
	if ttl > maxTTL {
		return 0, rpctypes.ErrGRPCLeaseTTLTooLarge
	}
	for {
		lease, err := b.engine.Grant(ctx, (rand.Int64N(maxTTL)+1)<<32|max(ttl, 1), max(ttl, 1))
		switch err := toStatus(err); err {
		case nil:
			return lease.ID, nil
		case rpctypes.ErrGRPCLeaseExist:
		default:
			return 0, err
		}
	}
}

// put is a request to put a key, with a lease of its own if lease is a TTL. undo
// gives that back if nothing was put.
func (b *Backend) put(ctx context.Context, key string, value []byte, lease int64) (_ *datastore.PutRequest, undo func(), _ error) {
	undo = func() {}
	if len(key)+len(value) > maxRequest {
		return nil, undo, rpctypes.ErrGRPCRequestTooLarge
	}
	if lease > 0 && lease <= maxTTL {
		id, err := b.Grant(ctx, lease)
		if err != nil {
			return nil, undo, err
		}
		lease = id
		undo = func() { b.engine.Revoke(context.WithoutCancel(ctx), id) } // or it expires
	}
	return &datastore.PutRequest{Key: key, Value: value, Lease: lease}, undo, nil
}

// keyValue is kv as kine has it: a lease is its TTL.
func keyValue(kv *datastore.KeyValue) server.KeyValue {
	return server.KeyValue{
		Key: kv.Key, Value: kv.Value, Version: kv.Version, Lease: kv.Lease & maxTTL,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
	}
}

func first(resp *datastore.RangeResponse) *server.KeyValue {
	if len(resp.KVs) == 0 {
		return nil
	}
	kv := keyValue(&resp.KVs[0])
	return &kv
}
