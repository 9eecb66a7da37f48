package etcdapi

import (
	"bytes"
	"cmp"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/karve-k8s/karve/datastore"
)

// rangeRequest is r for the engine. The engine can neither sort nor filter by revision; for
// such a request it returns all keys, and rangeResponse selects.
func rangeRequest(r *pb.RangeRequest) datastore.RangeRequest {
	key, end := bounds(r.Key, r.RangeEnd)
	req := datastore.RangeRequest{Key: key, End: end, Revision: r.Revision, Limit: max(r.Limit, 0), KeysOnly: r.KeysOnly, CountOnly: r.CountOnly}
	switch {
	case r.SortOrder != pb.RangeRequest_NONE || filters(r):
		req.Limit = 0
	case sorts(r) && req.Limit > 0:
		req.Limit++ // a sort target without an order: etcd sorts only the first keys
	}
	if r.SortTarget == pb.RangeRequest_VALUE {
		req.KeysOnly = false
	}
	return req
}

// sorts tells whether r wants another order than the engine's, which is by key.
func sorts(r *pb.RangeRequest) bool {
	return r.SortTarget != pb.RangeRequest_KEY || r.SortOrder == pb.RangeRequest_DESCEND
}

func filters(r *pb.RangeRequest) bool {
	return r.MinModRevision != 0 || r.MaxModRevision != 0 || r.MinCreateRevision != 0 || r.MaxCreateRevision != 0
}

// rangeResponse answers r from the engine's answer to rangeRequest. As in etcd, the count is
// that of the whole range, even if r filters.
func rangeResponse(r *pb.RangeRequest, resp *datastore.RangeResponse, h *pb.ResponseHeader) *pb.RangeResponse {
	kvs, more := resp.KVs, resp.More
	if filters(r) {
		kvs = slices.DeleteFunc(kvs, func(kv datastore.KeyValue) bool {
			return outside(kv.ModRevision, r.MinModRevision, r.MaxModRevision) ||
				outside(kv.CreateRevision, r.MinCreateRevision, r.MaxCreateRevision)
		})
	}
	if sorts(r) {
		slices.SortStableFunc(kvs, order(r))
	}
	if r.Limit > 0 && int64(len(kvs)) > r.Limit {
		kvs, more = kvs[:r.Limit], true
	}
	keysOnly(r, kvs)
	return &pb.RangeResponse{Header: h, Kvs: KeyValues(kvs), More: more, Count: resp.Count}
}

// keysOnly removes what a request for keys alone does not get. etcd answers it from its index,
// which has no leases (server/storage/mvcc/kvstore_txn.go), unless it has to sort by value.
func keysOnly(r *pb.RangeRequest, kvs []datastore.KeyValue) {
	if !r.KeysOnly {
		return
	}
	for i := range kvs {
		kvs[i].Value = nil
		if r.SortTarget != pb.RangeRequest_VALUE {
			kvs[i].Lease = 0
		}
	}
}

func outside(revision, least, most int64) bool {
	return least != 0 && revision < least || most != 0 && revision > most
}

func order(r *pb.RangeRequest) func(a, b datastore.KeyValue) int {
	by := func(a, b datastore.KeyValue) int { return cmp.Compare(a.Key, b.Key) }
	switch r.SortTarget {
	case pb.RangeRequest_VERSION:
		by = func(a, b datastore.KeyValue) int { return cmp.Compare(a.Version, b.Version) }
	case pb.RangeRequest_CREATE:
		by = func(a, b datastore.KeyValue) int { return cmp.Compare(a.CreateRevision, b.CreateRevision) }
	case pb.RangeRequest_MOD:
		by = func(a, b datastore.KeyValue) int { return cmp.Compare(a.ModRevision, b.ModRevision) }
	case pb.RangeRequest_VALUE:
		by = func(a, b datastore.KeyValue) int { return bytes.Compare(a.Value, b.Value) }
	}
	if r.SortOrder == pb.RangeRequest_DESCEND {
		return func(a, b datastore.KeyValue) int { return by(b, a) }
	}
	return by
}

// Event is e in etcd's form. It shares the values.
func Event(e *datastore.Event) *mvccpb.Event {
	out := &mvccpb.Event{Kv: KeyValue(&e.KV)}
	if e.Type == datastore.EventDelete {
		out.Type = mvccpb.DELETE
	}
	if e.Prev != nil {
		out.PrevKv = KeyValue(e.Prev)
	}
	return out
}

// KeyValue is kv in etcd's form. It shares the value.
func KeyValue(kv *datastore.KeyValue) *mvccpb.KeyValue {
	out := new(mvccpb.KeyValue)
	fill(out, kv, []byte(kv.Key))
	return out
}

// KeyValues are kvs in etcd's form. They share the values.
func KeyValues(kvs []datastore.KeyValue) []*mvccpb.KeyValue {
	if len(kvs) == 0 {
		return nil
	}
	length := 0
	for i := range kvs {
		length += len(kvs[i].Key)
	}
	keys := make([]byte, 0, length)
	block, out := make([]mvccpb.KeyValue, len(kvs)), make([]*mvccpb.KeyValue, len(kvs))
	for i := range kvs {
		begin := len(keys)
		keys = append(keys, kvs[i].Key...)
		fill(&block[i], &kvs[i], keys[begin:len(keys):len(keys)])
		out[i] = &block[i]
	}
	return out
}

func fill(out *mvccpb.KeyValue, kv *datastore.KeyValue, key []byte) {
	out.Key, out.Value = key, kv.Value
	out.CreateRevision, out.ModRevision = kv.CreateRevision, kv.ModRevision
	out.Version, out.Lease = kv.Version, kv.Lease
}
