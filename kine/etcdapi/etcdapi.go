// Package etcdapi serves the storage engine, package datastore, as the etcd API for etcd's
// clients and etcdctl. The engine has etcd's data model.
//
// The server is one member, which is always the leader. It has no authentication: every client
// that reaches the listener is an administrator. It has no snapshots in etcd's format: karve
// backup create makes a backup of a running server.
package etcdapi

import (
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/kine/pace"
)

// The IDs of the cluster and of its one member. Clients only compare them; etcd's are random.
const (
	clusterID = 0x6b61727665000001
	memberID  = 0x6b61727665000002
	raftTerm  = 1
)

// Server answers the etcd API for an engine. It writes nothing by itself, and its only
// goroutines are those of the streams that it serves.
type Server struct {
	// A new method of these is a compile error. Methods that are missing in the others are
	// Unimplemented.
	pb.UnsafeKVServer
	pb.UnsafeWatchServer
	pb.UnsafeLeaseServer
	pb.UnimplementedMaintenanceServer
	pb.UnimplementedClusterServer
	pb.UnimplementedAuthServer

	engine  *datastore.Engine
	version string
	maxOps  int
	hold    func(key, end string, start int64) time.Duration // how long a watch waits for its history

	mu      sync.Mutex
	streams map[*stream]bool
	urls    map[string]string // by network
}

// New makes a server of an engine. The caller closes the engine after the gRPC servers.
// version is the release of etcd in the answer to Status.
func New(engine *datastore.Engine, version string) *Server {
	return &Server{engine: engine, version: version, maxOps: maxOps, streams: map[*stream]bool{}, hold: new(pace.Watches).Hold}
}

// SetMaxTxnOps sets the number of operations that a transaction may have. The default is
// etcd's, 128. Call it before the server is registered.
func (s *Server) SetMaxTxnOps(n int) { s.maxOps = n }

// Ours tells whether an answer comes from such a server and not from an etcd.
func Ours(h *pb.ResponseHeader) bool {
	return h.GetClusterId() == clusterID && h.GetMemberId() == memberID
}

// Register adds the services to a gRPC server.
func (s *Server) Register(server *grpc.Server) {
	pb.RegisterKVServer(server, s)
	pb.RegisterWatchServer(server, s)
	pb.RegisterLeaseServer(server, s)
	pb.RegisterMaintenanceServer(server, s)
	pb.RegisterClusterServer(server, s)
	pb.RegisterAuthServer(server, s)
	healthpb.RegisterHealthServer(server, health.NewServer())
}

// SetClientURLs sets the URLs by which clients reach the server on each network ("unix",
// "tcp"). The list of members has the URL of the network that the client came by, because
// clients connect to it again.
func (s *Server) SetClientURLs(urls map[string]string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.urls = urls
}

// header is the header of an answer at a revision.
func header(revision int64) *pb.ResponseHeader {
	return &pb.ResponseHeader{ClusterId: clusterID, MemberId: memberID, Revision: revision, RaftTerm: raftTerm}
}

// newest is the header of an answer that has no revision of its own.
func (s *Server) newest() *pb.ResponseHeader { return header(s.engine.Revision()) }
