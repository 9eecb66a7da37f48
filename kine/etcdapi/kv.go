package etcdapi

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/karve-k8s/karve/datastore"
)

// Range returns keys. A serializable read is like any other, because there is one member.
func (s *Server) Range(ctx context.Context, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	if err := checkRange(r); err != nil {
		return nil, err
	}
	req := rangeRequest(r)
	req.Revision = max(req.Revision, 0) // etcd takes a negative one for the newest
	resp, err := s.engine.Range(ctx, req)
	if err != nil {
		return nil, Status(err)
	}
	return rangeResponse(r, resp, header(resp.Revision)), nil
}

// Put sets a key.
func (s *Server) Put(ctx context.Context, r *pb.PutRequest) (*pb.PutResponse, error) {
	if err := checkPut(r); err != nil {
		return nil, err
	}
	if err := checkSize(r); err != nil {
		return nil, err
	}
	resp, err := s.engine.Put(ctx, putRequest(r))
	if err != nil {
		return nil, Status(err)
	}
	return putResponse(resp, header(resp.Revision)), nil
}

// DeleteRange removes keys in one revision.
func (s *Server) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest) (*pb.DeleteRangeResponse, error) {
	if err := checkDelete(r); err != nil {
		return nil, err
	}
	resp, err := s.engine.Delete(ctx, deleteRequest(r))
	if err != nil {
		return nil, Status(err)
	}
	return deleteResponse(resp, header(resp.Revision)), nil
}

// Txn executes one branch in one revision.
func (s *Server) Txn(ctx context.Context, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	if err := checkTxn(r, s.maxOps); err != nil {
		return nil, err
	}
	if err := checkSize(r); err != nil {
		return nil, err
	}
	resp, err := s.engine.Txn(ctx, txnRequest(r))
	if err != nil {
		return nil, Status(err)
	}
	return txnResponse(r, resp, header), nil
}

// Compact removes history. If physical is set, it waits until the history is removed from the
// disk.
func (s *Server) Compact(ctx context.Context, r *pb.CompactionRequest) (*pb.CompactionResponse, error) {
	if err := s.engine.Compact(ctx, r.Revision, r.Physical); err != nil {
		return nil, Status(err)
	}
	return &pb.CompactionResponse{Header: s.newest()}, nil
}

var _ pb.KVServer = (*Server)(nil)

// bounds are a range in the engine's form, whose End is also a string.
func bounds(key, end []byte) (string, string) { return string(key), string(end) }

func putRequest(r *pb.PutRequest) datastore.PutRequest {
	return datastore.PutRequest{
		Key: string(r.Key), Value: r.Value, Lease: r.Lease,
		IgnoreValue: r.IgnoreValue, IgnoreLease: r.IgnoreLease, PrevKV: r.PrevKv,
	}
}

func putResponse(resp *datastore.PutResponse, h *pb.ResponseHeader) *pb.PutResponse {
	out := &pb.PutResponse{Header: h}
	if resp.Prev != nil {
		out.PrevKv = KeyValue(resp.Prev)
	}
	return out
}

func deleteRequest(r *pb.DeleteRangeRequest) datastore.DeleteRequest {
	key, end := bounds(r.Key, r.RangeEnd)
	return datastore.DeleteRequest{Key: key, End: end, PrevKV: r.PrevKv}
}

func deleteResponse(resp *datastore.DeleteResponse, h *pb.ResponseHeader) *pb.DeleteRangeResponse {
	return &pb.DeleteRangeResponse{Header: h, Deleted: resp.Deleted, PrevKvs: KeyValues(resp.Prev)}
}
