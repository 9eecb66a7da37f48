package kine

import (
	"context"
	"errors"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// etcd's client makes its KV, Lease and Maintenance out of the generated gRPC
// clients. These are such, and call the backend's service: the messages are handed
// over as they are.

// errNoStreams: the API server asks for watches only, and those have their own way.
var errNoStreams = status.Error(codes.Unimplemented, "the client in this process has no streams but watches: use the socket")

type localKV struct{ *local }

func (l localKV) Range(ctx context.Context, in *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	return l.api.Range(ctx, in)
}

func (l localKV) Put(ctx context.Context, in *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	return l.api.Put(ctx, in)
}

func (l localKV) DeleteRange(ctx context.Context, in *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	return l.api.DeleteRange(ctx, in)
}

func (l localKV) Txn(ctx context.Context, in *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return l.api.Txn(ctx, in)
}

func (l localKV) Compact(ctx context.Context, in *pb.CompactionRequest, _ ...grpc.CallOption) (*pb.CompactionResponse, error) {
	return l.api.Compact(ctx, in)
}

type localLease struct{ *local }

func (l localLease) LeaseGrant(ctx context.Context, in *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	out, err := l.api.LeaseGrant(ctx, in)
	if engine, ok := l.store.(native); ok && errors.Is(err, rpctypes.ErrGRPCNoSpace) {
		err = noSpace(engine.engine.NoSpace())
	}
	return out, err
}

func (l localLease) LeaseRevoke(ctx context.Context, in *pb.LeaseRevokeRequest, _ ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
	return l.api.LeaseRevoke(ctx, in)
}

func (l localLease) LeaseKeepAlive(context.Context, ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	return nil, errNoStreams
}

func (l localLease) LeaseTimeToLive(ctx context.Context, in *pb.LeaseTimeToLiveRequest, _ ...grpc.CallOption) (*pb.LeaseTimeToLiveResponse, error) {
	return l.api.LeaseTimeToLive(ctx, in)
}

func (l localLease) LeaseLeases(ctx context.Context, in *pb.LeaseLeasesRequest, _ ...grpc.CallOption) (*pb.LeaseLeasesResponse, error) {
	return l.api.LeaseLeases(ctx, in)
}

type localMaintenance struct{ *local }

func (l localMaintenance) Alarm(ctx context.Context, in *pb.AlarmRequest, _ ...grpc.CallOption) (*pb.AlarmResponse, error) {
	return l.api.Alarm(ctx, in)
}

func (l localMaintenance) Status(ctx context.Context, in *pb.StatusRequest, _ ...grpc.CallOption) (*pb.StatusResponse, error) {
	return l.api.Status(ctx, in)
}

func (l localMaintenance) Defragment(ctx context.Context, in *pb.DefragmentRequest, _ ...grpc.CallOption) (*pb.DefragmentResponse, error) {
	return l.api.Defragment(ctx, in)
}

func (l localMaintenance) Hash(ctx context.Context, in *pb.HashRequest, _ ...grpc.CallOption) (*pb.HashResponse, error) {
	return l.api.Hash(ctx, in)
}

func (l localMaintenance) HashKV(ctx context.Context, in *pb.HashKVRequest, _ ...grpc.CallOption) (*pb.HashKVResponse, error) {
	return l.api.HashKV(ctx, in)
}

func (l localMaintenance) Snapshot(context.Context, *pb.SnapshotRequest, ...grpc.CallOption) (pb.Maintenance_SnapshotClient, error) {
	return nil, errNoStreams
}

func (l localMaintenance) MoveLeader(ctx context.Context, in *pb.MoveLeaderRequest, _ ...grpc.CallOption) (*pb.MoveLeaderResponse, error) {
	return l.api.MoveLeader(ctx, in)
}

func (l localMaintenance) Downgrade(ctx context.Context, in *pb.DowngradeRequest, _ ...grpc.CallOption) (*pb.DowngradeResponse, error) {
	return l.api.Downgrade(ctx, in)
}
