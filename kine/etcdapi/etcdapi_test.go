package etcdapi

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/eventually"
)

// served is an engine without a file behind a socket, and a client of it. It all
// ends with the test, which fails if a goroutine is left.
type served struct {
	*clientv3.Client
	engine *datastore.Engine
	server *Server
	addr   string
}

func serve(t testing.TB) *served {
	t.Helper()
	before := runtime.NumGoroutine()
	dir, err := os.MkdirTemp("", "etcdapi") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	if err != nil {
		t.Fatal(err)
	}
	s := &served{engine: engine, server: New(engine, version.Version), addr: "unix://" + filepath.Join(dir, "s")}
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.WaitForHandlers(true))
	s.server.Register(server)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	if s.Client, err = clientv3.New(clientv3.Config{Endpoints: []string{s.addr}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Client.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("serve: %v", err)
		}
		if n := len(s.server.streams); n != 0 {
			t.Errorf("%d streams are left", n)
		}
		if n := engine.Stats().Watchers; n != 0 {
			t.Errorf("%d watchers of the engine are left", n)
		}
		engine.Close()
		os.RemoveAll(dir)
		eventually.Goroutines(t, before)
	})
	return s
}

// conn is a connection of gRPC alone, for what etcd's client hides.
func (s *served) conn(t testing.TB) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(s.addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

// put sets a key and answers its revision.
func (s *served) put(t testing.TB, key, value string, opts ...clientv3.OpOption) int64 {
	t.Helper()
	resp, err := s.Put(t.Context(), key, value, opts...)
	if err != nil {
		t.Fatalf("put %s: %v", key, err)
	}
	return resp.Header.Revision
}

func TestMemberAndMaintenance(t *testing.T) {
	s, ctx := serve(t), t.Context()
	s.server.SetClientURLs(map[string]string{"unix": s.addr, "tcp": "https://elsewhere"})
	s.put(t, "a", "1")

	members, err := s.MemberList(ctx)
	if err != nil || len(members.Members) != 1 || members.Members[0].ClientURLs[0] != s.addr {
		t.Errorf("members: %v, %v, want one at %s", members, err, s.addr)
	}
	status, err := s.Status(ctx, s.addr)
	if err != nil || status.Version != version.Version || status.Header.Revision != 2 || status.DbSize == 0 || status.Leader != members.Members[0].ID || len(status.Errors) > 0 {
		t.Errorf("status: %v, %v", status, err)
	}
	if alarms, err := s.AlarmList(ctx); err != nil || len(alarms.Alarms) != 0 {
		t.Errorf("alarms: %v, %v, want none", alarms, err)
	}
	if _, err := s.AlarmDisarm(ctx, &clientv3.AlarmMember{}); err != nil {
		t.Errorf("disarm: %v", err)
	}
	if _, err := s.Defragment(ctx, s.addr); err != nil {
		t.Errorf("defragment: %v", err)
	}
	if auth, err := s.AuthStatus(ctx); err != nil || auth.Enabled {
		t.Errorf("auth: %v, %v, want disabled", auth, err)
	}
	health, err := healthpb.NewHealthClient(s.conn(t)).Check(ctx, &healthpb.HealthCheckRequest{})
	if err != nil || health.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", health, err)
	}
}

// What is not there says what to use instead.
func TestUnimplemented(t *testing.T) {
	s, ctx := serve(t), t.Context()
	snapshot, err := s.SnapshotWithVersion(ctx)
	if err == nil {
		snapshot.Snapshot.Close()
	}
	wantText(t, "snapshot", err, "karve backup create")
	_, err = s.HashKV(ctx, s.addr, 0)
	wantText(t, "hash", err, "karve datastore verify")
	_, err = s.MemberAdd(ctx, []string{"http://127.0.0.1:1"})
	wantText(t, "member add", err, "not implemented")
	_, err = s.UserAdd(ctx, "u", "p")
	wantText(t, "user add", err, "not implemented")
}

func TestAClosedEngineIsUnavailable(t *testing.T) {
	s := serve(t)
	kv := pb.NewKVClient(s.conn(t)) // etcd's client would try again
	s.engine.Close()
	_, err := kv.Put(t.Context(), &pb.PutRequest{Key: []byte("a")})
	wantText(t, "put", err, "Unavailable")
}

// TestSameAnswersAsEtcd has the rest.
func TestLeases(t *testing.T) {
	s, ctx := serve(t), t.Context()
	lease, err := s.Grant(ctx, 60)
	if err != nil || lease.ID == 0 || lease.TTL != 60 {
		t.Fatalf("grant: %+v, %v", lease, err)
	}
	if all, err := s.Leases(ctx); err != nil || len(all.Leases) != 1 || all.Leases[0].ID != lease.ID {
		t.Errorf("leases: %+v, %v", all, err)
	}
	if once, err := s.KeepAliveOnce(ctx, lease.ID); err != nil || once.TTL != 60 {
		t.Errorf("keep alive: %+v, %v", once, err)
	}
	_, err = s.KeepAliveOnce(ctx, lease.ID+1)
	wantError(t, "keep alive of none", err, rpctypes.ErrLeaseNotFound)
	_, err = s.Grant(ctx, maxTTL+1)
	wantError(t, "too long", err, rpctypes.ErrLeaseTTLTooLarge)
	raw := pb.NewLeaseClient(s.conn(t))
	if own, err := raw.LeaseGrant(ctx, &pb.LeaseGrantRequest{ID: 7, TTL: -1}); err != nil || own.ID != 7 || own.TTL != 1 {
		t.Errorf("grant 7: %v, %v, want a second at least", own, err)
	}
}

func wantError(t testing.TB, what string, got, want error) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}
