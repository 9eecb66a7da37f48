package kine

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
)

// service is the etcd API of a store: for the engine our own, for any other kine's
// bridge.
type service interface {
	pb.KVServer
	pb.LeaseServer
	pb.MaintenanceServer
	Register(*grpc.Server)
}
