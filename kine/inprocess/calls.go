package inprocess

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// etcd's client makes its KV, Lease and Maintenance from generated gRPC clients. The types
// here have those of their methods that the API server uses, and call the etcd API of the store with
// the same messages.

// unserved answers all other calls.
type unserved struct{}

var errUnserved = status.Error(codes.Unimplemented, "the client in this process has no such call: use the socket")

func (unserved) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return errUnserved
}

func (unserved) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	return nil, errUnserved
}

type kvCalls struct {
	pb.KVClient // RangeStream is not called: [kv] has a GetStream of its own
	api         API
}

func (c kvCalls) Range(ctx context.Context, in *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	return c.api.Range(ctx, in)
}

func (c kvCalls) Put(ctx context.Context, in *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	return c.api.Put(ctx, in)
}

func (c kvCalls) DeleteRange(ctx context.Context, in *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	return c.api.DeleteRange(ctx, in)
}

func (c kvCalls) Txn(ctx context.Context, in *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return c.api.Txn(ctx, in)
}

func (c kvCalls) Compact(ctx context.Context, in *pb.CompactionRequest, _ ...grpc.CallOption) (*pb.CompactionResponse, error) {
	return c.api.Compact(ctx, in)
}

type leaseCalls struct {
	pb.LeaseClient
	*Endpoint
}

func (c leaseCalls) LeaseGrant(ctx context.Context, in *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	out, err := c.api.LeaseGrant(ctx, in)
	if keeper, ok := c.store.(SpaceKeeper); ok && errors.Is(err, rpctypes.ErrGRPCNoSpace) {
		err = noSpace(keeper.NoSpace())
	}
	return out, err
}

type maintenanceCalls struct {
	pb.MaintenanceClient
	api API
}

func (c maintenanceCalls) Status(ctx context.Context, in *pb.StatusRequest, _ ...grpc.CallOption) (*pb.StatusResponse, error) {
	return c.api.Status(ctx, in)
}
