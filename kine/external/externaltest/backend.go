// Package externaltest makes the engine a kine backend, for tests. What serves kine's
// backends is tested with it, without a database.
package externaltest

import (
	"context"
	"errors"

	"github.com/k3s-io/kine/pkg/server"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/kine/etcdapi"
)

// backend keeps the contract of kine's server.Backend as kine's bridge relies on it.
type backend struct {
	server.Backend // ListStream is never called
	engine         *datastore.Engine
}

// Backend returns an engine as a kine backend.
func Backend(engine *datastore.Engine) server.Backend { return &backend{engine: engine} }

// Start has nothing to do: an open engine runs.
func (b *backend) Start(context.Context) error { return nil }

// Get reads one key; nil if it is not there.
func (b *backend) Get(ctx context.Context, key string, revision int64, keysOnly bool) (int64, *server.KeyValue, error) {
	resp, err := b.engine.Range(ctx, datastore.RangeRequest{Key: key, Revision: revision, KeysOnly: keysOnly})
	if err != nil {
		return b.engine.Revision(), nil, etcdapi.Status(err)
	}
	return resp.Revision, firstOf(resp), nil
}

// List reads a range in order.
func (b *backend) List(ctx context.Context, key, end string, limit, revision int64, keysOnly bool) (int64, []*server.KeyValue, error) {
	resp, err := b.engine.Range(ctx, datastore.RangeRequest{Key: key, End: end, Revision: revision, Limit: limit, KeysOnly: keysOnly})
	if err != nil {
		return b.engine.Revision(), nil, etcdapi.Status(err)
	}
	kvs := make([]*server.KeyValue, len(resp.KVs))
	for i := range resp.KVs {
		kv := keyValue(&resp.KVs[i])
		kvs[i] = &kv
	}
	return resp.Revision, kvs, nil
}

// Count counts a range, at a cost that does not depend on the number of keys.
func (b *backend) Count(ctx context.Context, key, end string, revision int64) (int64, int64, error) {
	resp, err := b.engine.Range(ctx, datastore.RangeRequest{Key: key, End: end, Revision: revision, CountOnly: true})
	if err != nil {
		return b.engine.Revision(), 0, etcdapi.Status(err)
	}
	return resp.Revision, resp.Count, nil
}

// Create puts a key that is not there. If it is, the error is exactly
// server.ErrKeyExists.
func (b *backend) Create(ctx context.Context, key string, value []byte, lease int64) (int64, error) {
	put, err := b.put(ctx, key, value, lease)
	if err != nil {
		return b.engine.Revision(), err
	}
	resp, err := b.engine.Txn(ctx, datastore.TxnRequest{
		Compare: []datastore.Compare{{Key: key, Target: datastore.CompareModRevision}},
		Then:    []datastore.Op{{Put: put}},
	})
	if err != nil {
		return b.engine.Revision(), etcdapi.Status(err)
	}
	if !resp.Succeeded {
		return resp.Revision, server.ErrKeyExists
	}
	return resp.Revision, nil
}

// Update puts a key that is at revision. If it is not, the answer is the key as
// it is, or nil, with false and no error.
func (b *backend) Update(ctx context.Context, key string, value []byte, revision, lease int64) (int64, *server.KeyValue, bool, error) {
	if revision <= 0 { // no key is at 0: the compare would create it
		rev, kv, err := b.Get(ctx, key, 0, false)
		return rev, kv, false, err
	}
	put, err := b.put(ctx, key, value, lease)
	if err != nil {
		return b.engine.Revision(), nil, false, err
	}
	resp, err := b.engine.Txn(ctx, datastore.TxnRequest{
		Compare: []datastore.Compare{{Key: key, Target: datastore.CompareModRevision, Number: revision}},
		Then:    []datastore.Op{{Put: put}, {Range: &datastore.RangeRequest{Key: key}}},
		Else:    []datastore.Op{{Range: &datastore.RangeRequest{Key: key}}},
	})
	if err != nil {
		return b.engine.Revision(), nil, false, etcdapi.Status(err)
	}
	return resp.Revision, firstOf(resp.Responses[len(resp.Responses)-1].Range), resp.Succeeded, nil
}

// Delete removes a key that is at revision. The answer is
// the key as it was or, with false, as it is; nil and false if there is none.
func (b *backend) Delete(ctx context.Context, key string, revision int64) (int64, *server.KeyValue, bool, error) {
	resp, err := b.engine.Txn(ctx, datastore.TxnRequest{
		Compare: []datastore.Compare{{Key: key, Target: datastore.CompareModRevision, Number: revision}},
		Then:    []datastore.Op{{Delete: &datastore.DeleteRequest{Key: key, PrevKV: true}}},
		Else:    []datastore.Op{{Range: &datastore.RangeRequest{Key: key}}},
	})
	if err != nil {
		return b.engine.Revision(), nil, false, etcdapi.Status(err)
	}
	if !resp.Succeeded {
		return resp.Revision, firstOf(resp.Responses[0].Range), false, nil
	}
	kv := keyValue(&resp.Responses[0].Delete.Prev[0])
	return resp.Revision, &kv, true, nil
}

// DbSize is anything.
func (b *backend) DbSize(context.Context) (int64, error) { return 1, nil }

// CurrentRevision is the newest durable revision.
func (b *backend) CurrentRevision(context.Context) (int64, error) { return b.engine.Revision(), nil }

// Compact lets go of history up to revision.
func (b *backend) Compact(ctx context.Context, revision int64) (int64, error) {
	err := b.engine.Compact(ctx, revision, false)
	return b.engine.Revision(), etcdapi.Status(err)
}

// put is a request to put a key; a lease is a TTL, anew for each key.
func (b *backend) put(ctx context.Context, key string, value []byte, ttl int64) (*datastore.PutRequest, error) {
	put := &datastore.PutRequest{Key: key, Value: value}
	if ttl != 0 {
		lease, err := b.engine.Grant(ctx, 0, ttl)
		if err != nil {
			return nil, etcdapi.Status(err)
		}
		put.Lease = lease.ID
	}
	return put, nil
}

// keyValue is kv as kine has it.
func keyValue(kv *datastore.KeyValue) server.KeyValue {
	return server.KeyValue{
		Key: kv.Key, Value: kv.Value, Version: kv.Version, Lease: kv.Lease,
		CreateRevision: kv.CreateRevision, ModRevision: kv.ModRevision,
	}
}

func firstOf(resp *datastore.RangeResponse) *server.KeyValue {
	if len(resp.KVs) == 0 {
		return nil
	}
	kv := keyValue(&resp.KVs[0])
	return &kv
}

// Watch hands over the events of all keys from revision on, or from the next one if that is 0,
// until ctx ends: then Eventc is closed. The first batch is the history. A start that is
// compacted is answered with CompactRevision alone.
func (b *backend) Watch(ctx context.Context, revision int64) server.WatchResult {
	batches, errc := make(chan server.EventBatch), make(chan error, 1)
	result := server.WatchResult{Eventc: batches, Errorc: errc}
	cursor, err := b.engine.Watch(datastore.WatchRequest{Key: "\x00", End: "\x00", StartRevision: revision, PrevKV: true})
	if err != nil {
		if errors.Is(err, datastore.ErrCompacted) {
			result.CurrentRevision, result.CompactRevision = b.engine.Revision(), b.engine.CompactRevision()
		}
		errc <- etcdapi.Status(err)
		close(batches)
		return result
	}
	result.CurrentRevision = cursor.Opened()
	cursor.RequestProgress() // for the first batch, if there is no history
	go func() {
		defer close(batches)
		defer cursor.Close()
		for {
			resp, err := cursor.Next(ctx)
			if err != nil {
				if ctx.Err() == nil {
					errc <- etcdapi.Status(err)
				}
				return
			}
			batch := server.EventBatch{CurrentRev: resp.Revision}
			for i := range resp.Events {
				batch.Events = append(batch.Events, event(&resp.Events[i]))
			}
			select {
			case batches <- batch:
			case <-ctx.Done():
				return
			}
		}
	}()
	return result
}

func event(e *datastore.Event) *server.Event {
	kv := keyValue(&e.KV)
	out := &server.Event{Delete: e.Type == datastore.EventDelete, Create: e.IsCreate(), KV: &kv}
	if e.Prev != nil {
		prev := keyValue(e.Prev)
		out.PrevKV = &prev
	}
	return out
}
