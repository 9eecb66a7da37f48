package kine

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// etcd's client makes its KV, Lease and Maintenance out of the generated gRPC
// clients. These are such, and call kine's bridge: the messages are handed over
// as they are.

type localKV struct{ *local }

func (l localKV) Range(ctx context.Context, in *pb.RangeRequest, _ ...grpc.CallOption) (*pb.RangeResponse, error) {
	return l.bridge.Range(ctx, in)
}

func (l localKV) Put(ctx context.Context, in *pb.PutRequest, _ ...grpc.CallOption) (*pb.PutResponse, error) {
	return l.bridge.Put(ctx, in)
}

func (l localKV) DeleteRange(ctx context.Context, in *pb.DeleteRangeRequest, _ ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	return l.bridge.DeleteRange(ctx, in)
}

func (l localKV) Txn(ctx context.Context, in *pb.TxnRequest, _ ...grpc.CallOption) (*pb.TxnResponse, error) {
	return l.bridge.Txn(ctx, in)
}

func (l localKV) Compact(ctx context.Context, in *pb.CompactionRequest, _ ...grpc.CallOption) (*pb.CompactionResponse, error) {
	return l.bridge.Compact(ctx, in)
}

type localLease struct{ *local }

// granter is a backend with leases of its own, which several keys can share.
type granter interface {
	Grant(ctx context.Context, ttl int64) (int64, error)
}

func (l localLease) LeaseGrant(ctx context.Context, in *pb.LeaseGrantRequest, _ ...grpc.CallOption) (*pb.LeaseGrantResponse, error) {
	g, ok := l.backend.(granter)
	if !ok {
		return l.bridge.LeaseGrant(ctx, in)
	}
	id, err := g.Grant(ctx, in.TTL)
	if err != nil {
		return nil, err
	}
	return &pb.LeaseGrantResponse{Header: &pb.ResponseHeader{}, ID: id, TTL: in.TTL}, nil
}

func (l localLease) LeaseRevoke(ctx context.Context, in *pb.LeaseRevokeRequest, _ ...grpc.CallOption) (*pb.LeaseRevokeResponse, error) {
	return l.bridge.LeaseRevoke(ctx, in)
}

func (l localLease) LeaseKeepAlive(context.Context, ...grpc.CallOption) (pb.Lease_LeaseKeepAliveClient, error) {
	return nil, l.bridge.LeaseKeepAlive(nil)
}

func (l localLease) LeaseTimeToLive(ctx context.Context, in *pb.LeaseTimeToLiveRequest, _ ...grpc.CallOption) (*pb.LeaseTimeToLiveResponse, error) {
	return l.bridge.LeaseTimeToLive(ctx, in)
}

func (l localLease) LeaseLeases(ctx context.Context, in *pb.LeaseLeasesRequest, _ ...grpc.CallOption) (*pb.LeaseLeasesResponse, error) {
	return l.bridge.LeaseLeases(ctx, in)
}

type localMaintenance struct{ *local }

func (l localMaintenance) Alarm(ctx context.Context, in *pb.AlarmRequest, _ ...grpc.CallOption) (*pb.AlarmResponse, error) {
	return l.bridge.Alarm(ctx, in)
}

func (l localMaintenance) Status(ctx context.Context, in *pb.StatusRequest, _ ...grpc.CallOption) (*pb.StatusResponse, error) {
	return l.bridge.Status(ctx, in)
}

func (l localMaintenance) Defragment(ctx context.Context, in *pb.DefragmentRequest, _ ...grpc.CallOption) (*pb.DefragmentResponse, error) {
	return l.bridge.Defragment(ctx, in)
}

func (l localMaintenance) Hash(ctx context.Context, in *pb.HashRequest, _ ...grpc.CallOption) (*pb.HashResponse, error) {
	return l.bridge.Hash(ctx, in)
}

func (l localMaintenance) HashKV(ctx context.Context, in *pb.HashKVRequest, _ ...grpc.CallOption) (*pb.HashKVResponse, error) {
	return l.bridge.HashKV(ctx, in)
}

func (l localMaintenance) Snapshot(_ context.Context, in *pb.SnapshotRequest, _ ...grpc.CallOption) (pb.Maintenance_SnapshotClient, error) {
	return nil, l.bridge.Snapshot(in, nil)
}

func (l localMaintenance) MoveLeader(ctx context.Context, in *pb.MoveLeaderRequest, _ ...grpc.CallOption) (*pb.MoveLeaderResponse, error) {
	return l.bridge.MoveLeader(ctx, in)
}

func (l localMaintenance) Downgrade(ctx context.Context, in *pb.DowngradeRequest, _ ...grpc.CallOption) (*pb.DowngradeResponse, error) {
	return l.bridge.Downgrade(ctx, in)
}
