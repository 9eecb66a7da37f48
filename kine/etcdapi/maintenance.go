package etcdapi

import (
	"context"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/version"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// Status describes the member, which is always the leader and never behind. All of the
// database's size counts as in use, because the engine returns free pages by itself.
func (s *Server) Status(context.Context, *pb.StatusRequest) (*pb.StatusResponse, error) {
	stats := s.engine.Stats()
	size := stats.FileBytes + stats.WALBytes
	if size == 0 { // in memory
		size = stats.CacheBytes
	}
	resp := &pb.StatusResponse{
		Header: header(stats.Revision), Version: s.version, StorageVersion: version.Cluster(s.version) + ".0",
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

func noSpace() *pb.AlarmMember {
	return &pb.AlarmMember{MemberID: memberID, Alarm: pb.AlarmType_NOSPACE}
}

// Alarm lists the only possible alarm, a full disk. Disarming changes nothing: the alarm ends
// when there is room again.
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

// Defragment does nothing: the engine returns free pages by itself after a compaction, when
// nobody writes.
func (s *Server) Defragment(context.Context, *pb.DefragmentRequest) (*pb.DefragmentResponse, error) {
	return &pb.DefragmentResponse{Header: s.newest()}, nil
}

// Snapshot is unsupported: a snapshot is a file in etcd's format.
func (s *Server) Snapshot(*pb.SnapshotRequest, pb.Maintenance_SnapshotServer) error {
	return status.Error(codes.Unimplemented, "there are no etcd snapshots of this datastore: `karve backup create FILE` makes a backup of a running server")
}

// Hash is unsupported: clients compare it with the hash of another member's files.
func (s *Server) Hash(context.Context, *pb.HashRequest) (*pb.HashResponse, error) {
	return nil, errHash
}

// HashKV is unsupported for the same reason as Hash.
func (s *Server) HashKV(context.Context, *pb.HashKVRequest) (*pb.HashKVResponse, error) {
	return nil, errHash
}

var errHash = status.Error(codes.Unimplemented, "there is no other member to compare hashes with: `karve datastore verify` checks every row")

// MemberList lists the one member with the URLs of the listeners.
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

// AuthStatus reports that there are no users: the listener decides which clients come in.
func (s *Server) AuthStatus(context.Context, *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	return &pb.AuthStatusResponse{Header: s.newest()}, nil
}

var (
	_ pb.MaintenanceServer = (*Server)(nil)
	_ pb.ClusterServer     = (*Server)(nil)
	_ pb.AuthServer        = (*Server)(nil)
)
