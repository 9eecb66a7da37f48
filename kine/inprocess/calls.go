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
// here have the methods of those and call the etcd API of the store with the same
// messages.

// errNoStreams is the answer to streams of leases and snapshots. The API server uses none.
var errNoStreams = status.Error(codes.Unimplemented, "the client in this process has no such stream: use the socket")

type kvCalls struct{ *Endpoint }

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

// RangeStream is not called: [kv] has a GetStream of its own.
func (c kvCalls) RangeStream(context.Context, *pb.RangeRequest, ...grpc.CallOption) (pb.KV_RangeStreamClient, error) {
	return nil, errNoStreams
}

type leaseCalls struct{ *Endpoint }

func (c leaseCalls) LeaseGrant(ctx context.Context, in *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	out, err := c.api.LeaseGrant(ctx, in)
	if keeper, ok := c.store.(SpaceKeeper); ok && errors.Is(err, rpctypes.ErrGRPCNoSpace) {
		err = noSpace(keeper.NoSpace())
	}
	return out, err
}

func (c leaseCalls) LeaseRevoke(ctx context.Context, in *pb.LeaseRevokeRequest, _ ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
	return c.api.LeaseRevoke(ctx, in)
}

func (c leaseCalls) LeaseKeepAlive(context.Context, ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	return nil, errNoStreams
}

func (c leaseCalls) LeaseTimeToLive(ctx context.Context, in *pb.LeaseTimeToLiveRequest, _ ...grpc.CallOption) (*pb.LeaseTimeToLiveResponse, error) {
	return c.api.LeaseTimeToLive(ctx, in)
}

func (c leaseCalls) LeaseLeases(ctx context.Context, in *pb.LeaseLeasesRequest, _ ...grpc.CallOption) (*pb.LeaseLeasesResponse, error) {
	return c.api.LeaseLeases(ctx, in)
}

type maintenanceCalls struct{ *Endpoint }

func (c maintenanceCalls) Alarm(ctx context.Context, in *pb.AlarmRequest, _ ...grpc.CallOption) (*pb.AlarmResponse, error) {
	return c.api.Alarm(ctx, in)
}

func (c maintenanceCalls) Status(ctx context.Context, in *pb.StatusRequest, _ ...grpc.CallOption) (*pb.StatusResponse, error) {
	return c.api.Status(ctx, in)
}

func (c maintenanceCalls) Defragment(ctx context.Context, in *pb.DefragmentRequest, _ ...grpc.CallOption) (*pb.DefragmentResponse, error) {
	return c.api.Defragment(ctx, in)
}

func (c maintenanceCalls) Hash(ctx context.Context, in *pb.HashRequest, _ ...grpc.CallOption) (*pb.HashResponse, error) {
	return c.api.Hash(ctx, in)
}

func (c maintenanceCalls) HashKV(ctx context.Context, in *pb.HashKVRequest, _ ...grpc.CallOption) (*pb.HashKVResponse, error) {
	return c.api.HashKV(ctx, in)
}

func (c maintenanceCalls) Snapshot(context.Context, *pb.SnapshotRequest, ...grpc.CallOption) (pb.Maintenance_SnapshotClient, error) {
	return nil, errNoStreams
}

func (c maintenanceCalls) MoveLeader(ctx context.Context, in *pb.MoveLeaderRequest, _ ...grpc.CallOption) (*pb.MoveLeaderResponse, error) {
	return c.api.MoveLeader(ctx, in)
}

func (c maintenanceCalls) Downgrade(ctx context.Context, in *pb.DowngradeRequest, _ ...grpc.CallOption) (*pb.DowngradeResponse, error) {
	return c.api.Downgrade(ctx, in)
}
