package external

import (
	"context"

	"github.com/k3s-io/kine/pkg/server"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/etcdapi"
	"github.com/karve-k8s/karve/kine/pace"
)

// api is kine's bridge with another RangeStream. When the limit is the number of keys in kine's
// first chunks (10, 30, 70, …), kine sends one key more, and tells that there are no others. The
// revision of a limited answer is that of a count made after the keys were read
// (kine pkg/server/rangestream.go).
type api struct {
	*server.KVServerBridge
	backend server.Backend
	paced   *pace.Watches
}

// API is kine's bridge, which answers requests for the members with the scheme.
func (b bridge) API(scheme string) kine.API {
	return api{server.New(b.backend, scheme, kine.ProgressInterval, kine.EtcdVersion), b.backend, &pace.Watches{}}
}

// Register adds the services to a gRPC server, as kine's bridge does (kine
// pkg/server/server.go).
func (a api) Register(to *grpc.Server) {
	pb.RegisterLeaseServer(to, a)
	pb.RegisterWatchServer(to, a)
	pb.RegisterKVServer(to, a)
	pb.RegisterClusterServer(to, a)
	pb.RegisterMaintenanceServer(to, a)
	healthpb.RegisterHealthServer(to, health.NewServer())
}

// RangeStream returns keys in chunks, as etcdapi's does.
func (a api) RangeStream(r *pb.RangeRequest, stream pb.KV_RangeStreamServer) error {
	if err := etcdapi.CheckRangeStream(r); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(stream.Context())
	defer cancel() // ends the list when a chunk cannot be sent
	send := func(resp *pb.RangeResponse) error { return stream.Send(&pb.RangeStreamResponse{RangeResponse: resp}) }
	key, end, revision, limit := string(r.Key), string(r.RangeEnd), max(r.Revision, 0), max(r.Limit, 0)
	if key == "\x00" && end == "\x00" {
		key, end = "", "" // kine's backends take this for all keys
	} else if end == "" { // and this for none
		resp, err := a.Range(ctx, r)
		if err != nil {
			return err
		}
		return send(resp)
	}
	if r.CountOnly {
		rev, count, err := a.backend.Count(ctx, key, end, revision)
		if err != nil {
			return err
		}
		return send(&pb.RangeResponse{Header: &pb.ResponseHeader{Revision: rev}, Count: count})
	}
	ask := limit
	if limit > 0 {
		ask++ // to see whether there are more
	}
	list := a.backend.ListStream(ctx, key, end, ask, revision, r.KeysOnly)
	var kvs []*mvccpb.KeyValue
	var count, size, chunk int64 = 0, 0, etcdapi.FirstChunk
	more := false
	for kv := range list.KVc {
		if more = limit > 0 && count == limit; more {
			continue // to the end of the list
		}
		if int64(len(kvs)) == chunk {
			if err := send(&pb.RangeResponse{Kvs: kvs}); err != nil {
				return err
			}
			chunk = etcdapi.NextChunk(chunk, int(size))
			kvs, size = make([]*mvccpb.KeyValue, 0, len(kvs)), 0
		}
		one := clientKV(kv)
		rename(one)
		kvs = append(kvs, one)
		size += int64(len(kv.Key) + len(kv.Value))
		count++
	}
	if err := <-list.Errorc; err != nil {
		return err
	}
	if more {
		at := revision
		if at == 0 {
			at = list.CurrentRevision
		}
		var err error
		if _, count, err = a.backend.Count(ctx, key, end, at); err != nil {
			return err
		}
	}
	return send(&pb.RangeResponse{Header: &pb.ResponseHeader{Revision: list.CurrentRevision}, Kvs: kvs, More: more, Count: count})
}
