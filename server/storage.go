package server

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/logbridge"
)

// How long a start waits for a datastore of the user's, and between two looks.
const (
	preflightTimeout = 60 * time.Second
	preflightRetry   = time.Second
)

// runStorage is the datastore as a part: our own behind the kine shim, or the
// user's etcd, which is only waited for.
func (s *controlPlane) runStorage(ctx context.Context, ready func()) error {
	if s.DatastoreEndpoint != "" {
		return s.useEtcd(ctx, ready)
	}
	store, err := datastore.Open(ctx, s.lock)
	if err != nil {
		return err
	}
	shim, err := kine.Serve(ctx, store, s.DataDir)
	if err != nil {
		return err
	}
	s.etcd = apiserver.Etcd{Endpoints: []string{shim.Endpoint()}}
	ready()
	select {
	case <-ctx.Done():
		return shim.Close()
	case err := <-shim.Failed():
		return errors.Join(err, shim.Close())
	}
}

func (s *controlPlane) useEtcd(ctx context.Context, ready func()) error {
	s.etcd = apiserver.Etcd{
		Endpoints: strings.Split(s.DatastoreEndpoint, ","),
		CAFile:    s.DatastoreCAFile, CertFile: s.DatastoreCertFile, KeyFile: s.DatastoreKeyFile,
	}
	if err := s.preflight(ctx); err != nil {
		return err
	}
	ready()
	<-ctx.Done()
	return nil
}

// preflight waits until etcd answers a read, for a minute at most, and says
// what it waits for. Without it the API server would wait as long, in silence,
// and then end the process.
func (s *controlPlane) preflight(ctx context.Context) error {
	config := clientv3.Config{
		Endpoints:   s.etcd.Endpoints,
		DialTimeout: 5 * time.Second,
		Logger:      logbridge.Zap(s.log, "etcd"),
	}
	if files := (transport.TLSInfo{CertFile: s.etcd.CertFile, KeyFile: s.etcd.KeyFile, TrustedCAFile: s.etcd.CAFile}); !files.Empty() || files.TrustedCAFile != "" {
		tls, err := files.ClientConfig()
		if err != nil {
			return fmt.Errorf("--datastore-cafile, --datastore-certfile, --datastore-keyfile: %w", err)
		}
		config.TLS = tls
	}
	client, err := clientv3.New(config)
	if err != nil {
		return fmt.Errorf("--datastore-endpoint: %w", err)
	}
	defer client.Close()
	where := redacted(s.etcd.Endpoints)
	ctx, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	for {
		attempt, cancel := context.WithTimeout(ctx, 5*time.Second)
		_, err := client.Get(attempt, "/registry/health")
		cancel()
		if err == nil {
			return nil
		}
		s.log.Warnf("waiting for the datastore at %s: %v", where, err)
		s.systemd.Status("waiting for the datastore at " + where)
		select {
		case <-time.After(preflightRetry):
		case <-ctx.Done():
			return fmt.Errorf("--datastore-endpoint %s: no answer in %v: %w", where, preflightTimeout, err)
		}
	}
}

// redacted lists URLs without the passwords they may hold.
func redacted(endpoints []string) string {
	var safe []string
	for _, endpoint := range endpoints {
		if u, err := url.Parse(endpoint); err == nil {
			safe = append(safe, u.Redacted())
		}
	}
	return strings.Join(safe, ", ")
}
