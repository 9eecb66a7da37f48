package etcdapi

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/karve-k8s/karve/datastore"
)

// txnRequest is r for the engine. checkTxn has accepted r.
func txnRequest(r *pb.TxnRequest) datastore.TxnRequest {
	req := datastore.TxnRequest{Then: ops(r.Success), Else: ops(r.Failure)}
	if len(r.Compare) > 0 {
		req.Compare = make([]datastore.Compare, len(r.Compare))
		for i, c := range r.Compare {
			req.Compare[i] = compare(c)
		}
	}
	return req
}

// The engine's constants by etcd's. checkTxn refuses others.
var (
	targets = map[pb.Compare_CompareTarget]datastore.CompareTarget{
		pb.Compare_VERSION: datastore.CompareVersion,
		pb.Compare_CREATE:  datastore.CompareCreateRevision,
		pb.Compare_MOD:     datastore.CompareModRevision,
		pb.Compare_VALUE:   datastore.CompareValue,
		pb.Compare_LEASE:   datastore.CompareLease,
	}
	results = map[pb.Compare_CompareResult]datastore.CompareResult{
		pb.Compare_EQUAL:     datastore.Equal,
		pb.Compare_GREATER:   datastore.Greater,
		pb.Compare_LESS:      datastore.Less,
		pb.Compare_NOT_EQUAL: datastore.NotEqual,
	}
)

func compare(c *pb.Compare) datastore.Compare {
	key, end := bounds(c.Key, c.RangeEnd)
	out := datastore.Compare{Key: key, End: end, Target: targets[c.Target], Result: results[c.Result]}
	switch c.Target { // as in etcd, a number for another target counts as 0
	case pb.Compare_VERSION:
		out.Number = c.GetVersion()
	case pb.Compare_CREATE:
		out.Number = c.GetCreateRevision()
	case pb.Compare_MOD:
		out.Number = c.GetModRevision()
	case pb.Compare_LEASE:
		out.Number = c.GetLease()
	case pb.Compare_VALUE:
		out.Value = c.GetValue()
	}
	return out
}

func ops(list []*pb.RequestOp) []datastore.Op {
	if len(list) == 0 {
		return nil
	}
	out := make([]datastore.Op, len(list))
	for i, op := range list {
		switch op := op.Request.(type) {
		case *pb.RequestOp_RequestRange:
			req := rangeRequest(op.RequestRange)
			out[i].Range = &req
		case *pb.RequestOp_RequestPut:
			req := putRequest(op.RequestPut)
			out[i].Put = &req
		case *pb.RequestOp_RequestDeleteRange:
			req := deleteRequest(op.RequestDeleteRange)
			out[i].Delete = &req
		case *pb.RequestOp_RequestTxn:
			req := txnRequest(op.RequestTxn)
			out[i].Txn = &req
		}
	}
	return out
}

// txnResponse answers r. begin makes the headers: an answer within a transaction has only the
// revision, and that of a nested transaction not even that.
func txnResponse(r *pb.TxnRequest, resp *datastore.TxnResponse, begin func(int64) *pb.ResponseHeader) *pb.TxnResponse {
	out := &pb.TxnResponse{Header: begin(resp.Revision), Succeeded: resp.Succeeded}
	asked := r.Success
	if !resp.Succeeded {
		asked = r.Failure
	}
	if len(asked) == 0 {
		return out
	}
	out.Responses = make([]*pb.ResponseOp, len(asked))
	for i, op := range asked {
		out.Responses[i] = opResponse(op, &resp.Responses[i])
	}
	return out
}

func inner(revision int64) *pb.ResponseHeader { return &pb.ResponseHeader{Revision: revision} }

func nested(int64) *pb.ResponseHeader { return &pb.ResponseHeader{} }

func opResponse(asked *pb.RequestOp, got *datastore.OpResponse) *pb.ResponseOp {
	switch op := asked.Request.(type) {
	case *pb.RequestOp_RequestRange:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseRange{
			ResponseRange: rangeResponse(op.RequestRange, got.Range, inner(got.Range.Revision))}}
	case *pb.RequestOp_RequestPut:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponsePut{
			ResponsePut: putResponse(got.Put, inner(got.Put.Revision))}}
	case *pb.RequestOp_RequestDeleteRange:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseDeleteRange{
			ResponseDeleteRange: deleteResponse(got.Delete, inner(got.Delete.Revision))}}
	case *pb.RequestOp_RequestTxn:
		return &pb.ResponseOp{Response: &pb.ResponseOp_ResponseTxn{
			ResponseTxn: txnResponse(op.RequestTxn, got.Txn, nested)}}
	}
	return &pb.ResponseOp{} // not reached: checkTxn refuses it
}
