package etcdapi

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Status describes the member: always the leader, never behind. What it has of
// its database free is given back by itself, so all of it counts as in use.
func (s *Server) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	stats := s.engine.Stats()
	size := stats.FileBytes + stats.WALBytes
	if size == 0 { // in memory
		size = stats.CacheBytes
	}
	resp := &pb.StatusResponse{
		Header: header(stats.Revision), Version: s.version, StorageVersion: storageVersion,
		DbSize: size, DbSizeInUse: size, Leader: memberID,
		RaftIndex: uint64(stats.Revision), RaftAppliedIndex: uint64(stats.Revision), RaftTerm: raftTerm,
	}
	if err := s.engine.Err(); err != nil {
		resp.Errors = append(resp.Errors, err.Error())
	}
	if stats.NoSpace {
		resp.Errors = append(resp.Errors, noSpace().String())
	}
	return resp, nil
}

// storageVersion is the layout of etcd's own files that this would be.
const storageVersion = "3.6.0"

func noSpace() *pb.AlarmMember {
	return &pb.AlarmMember{MemberID: memberID, Alarm: pb.AlarmType_NOSPACE}
}

// Alarm lists the alarm that there can be, a full disk. It goes by itself when
// there is room again: disarming it changes nothing.
func (s *Server) Alarm(_ context.Context, r *pb.AlarmRequest) (*pb.AlarmResponse, error) {
	if r.Action == pb.AlarmRequest_ACTIVATE {
		return nil, status.Error(codes.Unimplemented, "alarms are not raised by hand")
	}
	resp := &pb.AlarmResponse{Header: s.newest()}
	if r.Action == pb.AlarmRequest_GET && r.Alarm != pb.AlarmType_CORRUPT && s.engine.Stats().NoSpace {
		resp.Alarms = append(resp.Alarms, noSpace())
	}
	return resp, nil
}

// Defragment has nothing to do: the engine gives free pages back by itself after
// a compaction, when nobody writes.
func (s *Server) Defragment(context.Context, *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	return &pb.DefragmentResponse{Header: s.newest()}, nil
}

// Snapshot is a file of etcd's, which there is none of.
func (s *Server) Snapshot(*pb.SnapshotRequest, pb.Maintenance_SnapshotServer) error {
	return status.Error(codes.Unimplemented, "there are no etcd snapshots of this datastore: `karve datastore backup FILE` makes a consistent copy of a running server's")
}

// Hash would be compared with another member's, of etcd's own files.
func (s *Server) Hash(context.Context, *pb.HashRequest) (*pb.HashResponse, error) {
	return nil, errHash
}

// HashKV is not there for the reason of Hash.
func (s *Server) HashKV(context.Context, *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	return nil, errHash
}

var errHash = status.Error(codes.Unimplemented, "there is no other member to compare hashes with: `karve datastore verify` checks every row")

// MemberList lists the one member, where the listeners are.
func (s *Server) MemberList(ctx context.Context, _ *pb.MemberListRequest) (*pb.MemberListResponse, error) {
	member := &pb.Member{ID: memberID, Name: "karve"}
	s.mu.Lock()
	defer s.mu.Unlock()
	if client, ok := peer.FromContext(ctx); ok && client.LocalAddr != nil {
		if url := s.urls[client.LocalAddr.Network()]; url != "" {
			member.ClientURLs = []string{url}
		}
	}
	return &pb.MemberListResponse{Header: s.newest(), Members: []*pb.Member{member}}, nil
}

// AuthStatus says that there are no users: the listener decides who comes in.
func (s *Server) AuthStatus(context.Context, *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	return &pb.AuthStatusResponse{Header: s.newest()}, nil
}

var (
	_ pb.MaintenanceServer = (*Server)(nil)
	_ pb.ClusterServer     = (*Server)(nil)
	_ pb.AuthServer        = (*Server)(nil)
)
