// Package kine serves a datastore as the etcd API: on a unix socket, and to this
// process without one.
//
// It is the one place that knows k3s-io/kine. kine's bridge (pkg/server) speaks
// etcd's protocol; what it speaks for is a server.Backend, ours being [Backend],
// the engine of package datastore. kine's own SQL store is not linked.
package kine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/k3s-io/kine/pkg/server"
	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"
)

const (
	// progressInterval is how often a watch that asked for it is told the
	// revision: kine's default (kine pkg/app).
	progressInterval = 5 * time.Second

	// etcdVersion is answered to Status. From 3.4.31 and 3.5.13 on, the API
	// server asks for watch progress, and serves consistent lists from its
	// cache (k8s.io/apiserver pkg/storage/feature).
	etcdVersion = "3.6.11"

	// Request sizes as etcd has them: 1.5 MiB and room for the framing.
	maxReceive = 1536*1024 + 512*1024
	maxSend    = 1<<31 - 1

	// maxSocketPath is what sockaddr_un holds on Linux, less its final zero.
	maxSocketPath = 107
)

// Shim is a backend served as the etcd API. Close it before the datastore.
type Shim struct {
	endpoint string
	local    *local
	server   *grpc.Server
	cancel   context.CancelFunc
	work     sync.WaitGroup
	tempDir  string
	failed   chan error
}

// Serve starts to serve backend on a unix socket, mode 0600: dir/kine.sock, or a
// private temporary directory where that path is longer than the kernel
// allows. The socket answers when Serve returns; ctx bounds only that start.
func Serve(ctx context.Context, backend server.Backend, dir string) (_ *Shim, err error) {
	s := &Shim{failed: make(chan error, 1)}
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.cancel = cancel
	defer func() {
		if err != nil {
			cancel()
			s.removeTempDir()
		}
	}()

	if err := backend.Start(running); err != nil {
		return nil, fmt.Errorf("start datastore: %w", err)
	}
	revision, err := backend.CurrentRevision(ctx)
	if err != nil {
		return nil, fmt.Errorf("start datastore: %w", err)
	}
	listener, err := s.listen(dir)
	if err != nil {
		return nil, err
	}

	s.server = grpc.NewServer(
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Hour, Timeout: 20 * time.Second}),
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxSendMsgSize(maxSend),
	)
	bridge := server.New(backend, "unix", progressInterval, etcdVersion)
	bridge.Register(s.server)
	s.local = register(running, backend, bridge)
	s.work.Go(func() { s.local.notify(revision) })
	s.work.Go(func() {
		if err := s.server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			s.failed <- fmt.Errorf("serve etcd API on %s: %w", s.endpoint, err)
		}
	})
	return s, nil
}

// Endpoint is the address for an etcd client: unix:///….
func (s *Shim) Endpoint() string { return s.endpoint }

// LocalEndpoint is the address for [NewClient], in this process only: karve://….
func (s *Shim) LocalEndpoint() string { return s.local.endpoint }

// Failed receives the error that ended the shim, if it ends other than by Close.
func (s *Shim) Failed() <-chan error { return s.failed }

// Close ends every request. It does not wait for requests in flight: the API
// server is gone by then, and what is left are watches of other clients, which
// do not end by themselves.
func (s *Shim) Close() error {
	s.local.unregister()
	s.cancel()
	s.server.Stop()
	s.work.Wait()
	s.removeTempDir()
	return nil
}

func (s *Shim) listen(dir string) (net.Listener, error) {
	path, err := filepath.Abs(filepath.Join(dir, "kine.sock"))
	if err != nil {
		return nil, fmt.Errorf("find socket path: %w", err)
	}
	if len(path) > maxSocketPath {
		// Not an abstract socket: those have no mode, and whoever reaches the
		// etcd API is an administrator.
		if s.tempDir, err = os.MkdirTemp("", "karve-"); err != nil {
			return nil, fmt.Errorf("make socket directory: %w", err)
		}
		path = filepath.Join(s.tempDir, "kine.sock")
	}
	// A socket left by a crash would refuse the bind. Nobody else uses it: the
	// datastore's lock is ours.
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old socket: %w", err)
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen on etcd socket: %w", err)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		listener.Close()
		return nil, fmt.Errorf("protect etcd socket: %w", err)
	}
	s.endpoint = "unix://" + path
	return listener, nil
}

func (s *Shim) removeTempDir() {
	if s.tempDir != "" {
		os.RemoveAll(s.tempDir)
	}
}
