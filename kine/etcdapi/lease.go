package etcdapi

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/karve-k8s/karve/datastore"
)

// maxTTL is the longest lease in seconds, as in etcd (server/lease/lessor.go).
const maxTTL = 9_000_000_000

// LeaseGrant makes a lease with the requested id, or with one of its own. A TTL below one
// second becomes one second.
func (s *Server) LeaseGrant(ctx context.Context, r *pb.LeaseGrantRequest) (*pb.LeaseGrantResponse, error) {
	switch {
	case r.TTL > maxTTL:
		return nil, rpctypes.ErrGRPCLeaseTTLTooLarge
	case r.ID < 0:
		return nil, status.Errorf(codes.InvalidArgument, "lease id %d is negative", r.ID)
	}
	lease, err := s.engine.Grant(ctx, r.ID, max(r.TTL, 1))
	if err != nil {
		return nil, Status(err)
	}
	return &pb.LeaseGrantResponse{Header: s.newest(), ID: lease.ID, TTL: lease.TTL}, nil
}

// LeaseRevoke ends a lease and deletes its keys.
func (s *Server) LeaseRevoke(ctx context.Context, r *pb.LeaseRevokeRequest) (*pb.LeaseRevokeResponse, error) {
	if err := s.engine.Revoke(ctx, r.ID); err != nil {
		return nil, Status(err)
	}
	return &pb.LeaseRevokeResponse{Header: s.newest()}, nil
}

// LeaseKeepAlive renews the lease of every request. The answer for a lease that does not exist
// has a TTL of 0.
func (s *Server) LeaseKeepAlive(stream pb.Lease_LeaseKeepAliveServer) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		lease, err := s.engine.KeepAlive(stream.Context(), r.ID)
		resp := &pb.LeaseKeepAliveResponse{Header: s.newest(), ID: r.ID}
		switch {
		case err == nil:
			resp.TTL = lease.TTL
		case !errors.Is(err, datastore.ErrLeaseNotFound):
			return Status(err)
		}
		if err := stream.Send(resp); err != nil {
			return err
		}
	}
}

// LeaseTimeToLive describes a lease. The answer for a lease that does not exist has a TTL of
// -1.
func (s *Server) LeaseTimeToLive(ctx context.Context, r *pb.LeaseTimeToLiveRequest) (*pb.LeaseTimeToLiveResponse, error) {
	lease, err := s.engine.TimeToLive(ctx, r.ID, r.Keys)
	resp := &pb.LeaseTimeToLiveResponse{Header: s.newest(), ID: r.ID, TTL: -1}
	if errors.Is(err, datastore.ErrLeaseNotFound) {
		return resp, nil
	}
	if err != nil {
		return nil, Status(err)
	}
	resp.TTL, resp.GrantedTTL = int64(lease.Remaining.Seconds()), lease.TTL
	for _, key := range lease.Keys {
		resp.Keys = append(resp.Keys, []byte(key))
	}
	return resp, nil
}

// LeaseLeases lists all leases, the next to expire first.
func (s *Server) LeaseLeases(ctx context.Context, _ *pb.LeaseLeasesRequest) (*pb.LeaseLeasesResponse, error) {
	leases, err := s.engine.Leases(ctx)
	if err != nil {
		return nil, Status(err)
	}
	slices.SortFunc(leases, func(a, b datastore.Lease) int { return cmp.Compare(a.Remaining, b.Remaining) })
	resp := &pb.LeaseLeasesResponse{Header: s.newest(), Leases: make([]*pb.LeaseStatus, len(leases))}
	for i, lease := range leases {
		resp.Leases[i] = &pb.LeaseStatus{ID: lease.ID}
	}
	return resp, nil
}

var _ pb.LeaseServer = (*Server)(nil)
