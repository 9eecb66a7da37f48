// Package kine serves Karve's engine as the etcd API: on a unix socket, over TCP if
// asked to, and to this process without either.
//
// Package etcdapi is the API of the engine (package datastore). Package inprocess has
// the client for this process, and package external the databases that are reached through
// k3s-io/kine. The package is named after the project whose place it takes.
package kine

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/version"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/keepalive"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/socket"
	"github.com/karve-k8s/karve/kine/etcdapi"
	"github.com/karve-k8s/karve/kine/inprocess"
)

const (
	// ProgressInterval is the time after a write at which a watch that asked for progress is
	// notified of the revision. kubeadm gives etcd this value, and it is kine's default (kine
	// pkg/app).
	ProgressInterval = 5 * time.Second

	// Request sizes as etcd has them: 1.5 MiB and room for the framing.
	maxReceive = 1536*1024 + 512*1024
	maxSend    = 1<<31 - 1
)

// EtcdVersion is the version in the answer to Status: the release of etcd whose API Karve is
// built with and compared with (test/conformance/etcd). From 3.4.31 and 3.5.13 on, the API server
// requests progress of watches, and serves consistent lists from its cache (k8s.io/apiserver
// pkg/storage/feature). EtcdClusterVersion is the version of a cluster of such members.
var (
	EtcdVersion        = version.Version
	EtcdClusterVersion = version.Cluster(EtcdVersion) + ".0"
)

// Shim is an engine served as the etcd API. Close it before the engine.
type Shim struct {
	endpoint string
	local    *inprocess.Endpoint
	servers  []*grpc.Server
	work     sync.WaitGroup
	failed   chan error
}

// Listener is a place besides the socket where the etcd API is served.
type Listener struct {
	net.Listener
	URL string      // by which clients reach it
	TLS *tls.Config // nil is none
}

// Serve starts to serve an engine on a unix socket, mode 0600, and on the listeners. The
// socket is dir/kine.sock, however long that path is ([socket.Listen]). A Windows before 10 1803
// has no unix sockets, so there is none.
//
// The socket answers when Serve returns. ctx bounds only the start. If Serve succeeds, the
// shim closes the listeners.
func Serve(ctx context.Context, engine *datastore.Engine, dir string, listeners ...Listener) (*Shim, error) {
	return ServeAPI(ctx, engine, etcdapi.New(engine, EtcdVersion), ProgressInterval, dir, listeners...)
}

// ServeAPI is [Serve] with an API that the caller has made, and with the interval of
// notifications. If dir is empty, there is no socket.
func ServeAPI(ctx context.Context, e *datastore.Engine, api *etcdapi.Server, progress time.Duration, dir string, listeners ...Listener) (_ *Shim, err error) {
	s := &Shim{failed: make(chan error, 1+len(listeners))}
	if s.local, err = inprocess.Serve(ctx, inprocess.Engine(e), api, progress); err != nil {
		return nil, err
	}
	urls := map[string]string{}
	for _, l := range listeners {
		urls[l.Addr().Network()] = l.URL
	}
	var listener *socket.Listener
	if dir != "" {
		if listener, err = socket.Listen(dir, "kine.sock"); err != nil {
			s.local.Close()
			return nil, fmt.Errorf("etcd API: %w", err)
		}
	}
	if listener != nil {
		s.endpoint = socket.URL(listener.Path())
	}
	urls["unix"] = s.endpoint
	api.SetClientURLs(urls)
	if listener != nil {
		s.serve(listener, api, s.endpoint)
	}
	for _, l := range listeners {
		var secure []grpc.ServerOption
		if l.TLS != nil {
			secure = append(secure, grpc.Creds(credentials.NewTLS(l.TLS)))
		}
		s.serve(l, api, l.URL, secure...)
	}
	return s, nil
}

// serve serves api on one listener.
func (s *Shim) serve(listener net.Listener, api *etcdapi.Server, where string, opts ...grpc.ServerOption) {
	server := grpc.NewServer(append(opts,
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Hour, Timeout: 20 * time.Second}),
		grpc.MaxRecvMsgSize(maxReceive),
		grpc.MaxSendMsgSize(maxSend),
		grpc.WaitForHandlers(true),
	)...)
	api.Register(server)
	s.servers = append(s.servers, server)
	s.work.Go(func() {
		if err := server.Serve(listener); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			s.failed <- fmt.Errorf("serve etcd API on %s: %w", where, err)
		}
	})
}

// Endpoint is the address for an etcd client: unix:///….
func (s *Shim) Endpoint() string { return s.endpoint }

// LocalEndpoint is the address for [inprocess.NewClient], in this process only: karve://….
func (s *Shim) LocalEndpoint() string { return s.local.URL() }

// Failed receives the error that ended the shim, unless Close ended it.
func (s *Shim) Failed() <-chan error { return s.failed }

// Close ends every request. It does not wait for requests in flight: the API server has ended
// by then, and the watches of other clients do not end by themselves.
func (s *Shim) Close() error {
	s.local.Close()
	for _, server := range s.servers {
		s.work.Go(server.Stop)
	}
	s.work.Wait()
	return nil
}
