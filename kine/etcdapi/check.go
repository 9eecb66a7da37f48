package etcdapi

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// etcd's own limits, by default (server/embed/config.go).
const (
	maxOps     = 128         // of a transaction, nested ones included; see SetMaxTxnOps
	maxRequest = 1536 * 1024 // bytes of a write
)

// Errors of requests that are wrong in any state, with etcd's texts
// (server/etcdserver/api/v3rpc/key.go). The engine finds keys that a transaction writes
// twice.

func checkRange(r *pb.RangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	if _, ok := pb.RangeRequest_SortOrder_name[int32(r.SortOrder)]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	if _, ok := pb.RangeRequest_SortTarget_name[int32(r.SortTarget)]; !ok {
		return rpctypes.ErrGRPCInvalidSortOption
	}
	return nil
}

func checkPut(r *pb.PutRequest) error {
	switch {
	case len(r.GetKey()) == 0:
		return rpctypes.ErrGRPCEmptyKey
	case r.IgnoreValue && len(r.Value) > 0:
		return rpctypes.ErrGRPCValueProvided
	case r.IgnoreLease && r.Lease != 0:
		return rpctypes.ErrGRPCLeaseProvided
	}
	return nil
}

func checkDelete(r *pb.DeleteRangeRequest) error {
	if len(r.GetKey()) == 0 {
		return rpctypes.ErrGRPCEmptyKey
	}
	return nil
}

// checkTxn allows a number of operations. A transaction uses as many as its longest part has,
// and the transactions nested in it have the rest.
func checkTxn(r *pb.TxnRequest, allowed int) error {
	used := max(len(r.GetCompare()), len(r.GetSuccess()), len(r.GetFailure()))
	if used > allowed {
		return rpctypes.ErrGRPCTooManyOps
	}
	for _, c := range r.GetCompare() {
		if len(c.GetKey()) == 0 {
			return rpctypes.ErrGRPCEmptyKey
		}
		// A newer client may send other numbers. etcd ignores such a compare
		// (server/etcdserver/txn/txn.go); Karve refuses it.
		if _, ok := targets[c.Target]; !ok {
			return status.Errorf(codes.InvalidArgument, "there is no compare target %d", c.Target)
		}
		if _, ok := results[c.Result]; !ok {
			return status.Errorf(codes.InvalidArgument, "there is no compare result %d", c.Result)
		}
	}
	for _, branch := range [][]*pb.RequestOp{r.GetSuccess(), r.GetFailure()} {
		for _, op := range branch {
			if err := checkOp(op, allowed-used); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkOp(op *pb.RequestOp, allowed int) error {
	switch op := op.GetRequest().(type) {
	case *pb.RequestOp_RequestRange:
		return checkRange(op.RequestRange)
	case *pb.RequestOp_RequestPut:
		return checkPut(op.RequestPut)
	case *pb.RequestOp_RequestDeleteRange:
		return checkDelete(op.RequestDeleteRange)
	case *pb.RequestOp_RequestTxn:
		return checkTxn(op.RequestTxn, allowed)
	}
	return rpctypes.ErrGRPCKeyNotFound // etcd's answer to an empty operation
}

// checkSize refuses the writes that etcd would refuse, so that whatever fits into Karve fits
// into etcd.
func checkSize(r proto.Message) error {
	if proto.Size(r) > maxRequest {
		return rpctypes.ErrGRPCRequestTooLarge
	}
	return nil
}
