package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/kine/external"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/lifecycle"
)

// How long a start waits for a datastore of the user's, for one answer of it,
// and between two attempts.
const (
	preflightTimeout = 60 * time.Second
	preflightAttempt = 3 * time.Second
	preflightRetry   = time.Second
)

// nodeLeases are the keys that kubelets update every ten seconds. Leases by which
// something is elected are not among them: who holds one must not be forgotten.
const nodeLeases = "/registry/leases/kube-node-lease/"

// runStorage is the datastore as a part: our own engine, a database of the user's,
// or the user's etcd, which is only waited for.
func (s *controlPlane) runStorage(ctx context.Context, ready func()) error {
	where, err := s.datastore()
	if err != nil {
		return err
	}
	switch {
	case where.etcd != nil:
		return s.useEtcd(ctx, where.etcd, ready)
	case where.external != nil:
		return s.useExternal(ctx, where.external, ready)
	}
	return s.useEngine(ctx, where, ready)
}

// What the engine keeps of values in memory, if the user has not said it: a sixteenth
// of the limit, but no less than an empty cluster needs, and no more than the engine's
// own default.
const (
	leastCache = 4 << 20
	mostCache  = 64 << 20
)

func cacheBytes(limit int64) int64 {
	if limit == 0 {
		return mostCache
	}
	return min(max(limit/16, leastCache), mostCache)
}

// useEngine opens the engine and serves it. The engine's failure to write is the
// part's: whatever was answered before it is on the disk.
func (s *controlPlane) useEngine(ctx context.Context, where endpoint, ready func()) (err error) {
	lock := s.lock
	if s.storeLock != nil {
		lock = s.storeLock
	}
	where.options.OnCommit = observeCommit
	where.options.Heartbeats = nodeLeases
	if where.options.CacheBytes == 0 {
		where.options.CacheBytes = cacheBytes(s.MemoryLimit)
	}
	if s.ForkFrom != "" && where.options.Durability == datastore.Memory {
		if where.options.Contents, err = s.forkedContents(ctx); err != nil {
			return fmt.Errorf("--fork-from: %w", err)
		}
	}
	where.options.OnWait = func(err error) {
		s.log.Warnf("waiting: %v", err)
		_ = s.systemd.Status("waiting: " + err.Error())
	}
	where.options.OnProgress = newStartProgress(s.systemd, time.Now).report
	where.options.OnFull = func(err error) {
		if err == nil {
			s.log.Info("there is room for the datastore again: writes work")
			return
		}
		s.log.Errorf("writes are refused, but for deletes: %v", err)
	}
	done := s.trace.Step(datastorePart, "open")
	engine, converted, err := datastore.OpenConverted(ctx, lock, where.options)
	if err != nil {
		return err
	}
	done()
	if converted != nil {
		s.log.Infof("converted %s to %s: %d keys at revision %d; the old file is %s",
			converted.From, converted.To, converted.Keys, converted.Revision, converted.Kept)
	}
	if up := engine.Upgraded(); up != nil {
		s.log.Infof("the datastore's schema was %d and is %d; as it was before it is in %s", up.From, up.To, up.Backup)
	}
	if engine.LogWasCopied() {
		s.log.Warnf("another program, such as an sqlite3 shell, has copied the log of %s back into it after the last stop; nothing is missing", engine.Path())
	}
	told := false // that the engine has failed
	defer func() {
		if closing := engine.Close(); !told { // or it says the same again
			err = errors.Join(err, closing)
		}
	}()
	defer showFigures(engine)()
	if s.newFork(engine, where.options.Durability == datastore.Memory) {
		if err := forgetServers(ctx, engine); err != nil {
			return err
		}
	}
	shim, err := kine.Serve(ctx, engine, s.DataDir, s.etcdListeners()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shim.Close()) }() // before the engine
	endControl, err := s.serveControl(engine)
	if err != nil {
		return err
	}
	defer endControl()
	s.etcd = apiserver.Etcd{Endpoints: []string{shim.LocalEndpoint()}}
	s.store = birthplace{engine, shim.LocalEndpoint()}
	s.settleWrites = engine.Barrier
	ready()
	select {
	case <-ctx.Done():
		return nil
	case <-engine.Failed():
		told = true
		failure := fmt.Errorf("the disk has failed: %w", engine.Err())
		if defect := (*datastore.PanicError)(nil); errors.As(engine.Err(), &defect) {
			s.log.Errorf("%v\n%s", defect, defect.Stack)
			failure = fmt.Errorf("the datastore has a defect (please report what the log says): %w", engine.Err())
		}
		lifecycle.Failed(ctx, failure)
	case err := <-shim.Failed():
		lifecycle.Failed(ctx, err)
	}
	<-ctx.Done() // reads and watches go on until the API server has stopped
	return nil
}

func (s *controlPlane) useEtcd(ctx context.Context, endpoints []string, ready func()) error {
	s.etcd = apiserver.Etcd{
		Endpoints: endpoints,
		CAFile:    s.DatastoreCAFile, CertFile: s.DatastoreCertFile, KeyFile: s.DatastoreKeyFile,
	}
	if err := s.preflight(ctx); err != nil {
		return err
	}
	endControl, err := s.serveControl(nil)
	if err != nil {
		return err
	}
	defer endControl()
	ready()
	<-ctx.Done()
	return nil
}

// useExternal serves a database of the user's. One that goes away while it is used
// makes requests fail until it is back; only kine giving up ends the part.
func (s *controlPlane) useExternal(ctx context.Context, where *external.Database, ready func()) (err error) {
	var backend *external.Backend
	err = s.waitForDatastore(ctx, datastoreEndpoint, where.String(), func(ctx context.Context) (err error) {
		backend, err = where.Open(ctx, external.Options{
			CAFile: s.DatastoreCAFile, CertFile: s.DatastoreCertFile, KeyFile: s.DatastoreKeyFile,
			Metrics: legacyregistry.Registerer(), State: s.externalState,
		})
		return err
	})
	if err != nil {
		return err
	}
	defer backend.Close()
	shim, err := external.Serve(ctx, backend, s.DataDir, s.etcdListeners()...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, shim.Close()) }() // before the backend
	endControl, err := s.serveControl(nil)
	if err != nil {
		return err
	}
	defer endControl()
	s.etcd = apiserver.Etcd{Endpoints: []string{shim.LocalEndpoint()}}
	ready()
	select {
	case <-ctx.Done():
		return nil
	case err := <-backend.Failed():
		lifecycle.Failed(ctx, err)
	case err := <-shim.Failed():
		lifecycle.Failed(ctx, err)
	}
	<-ctx.Done()
	return nil
}

func (s *controlPlane) externalState(err error) {
	if err != nil {
		s.log.Error(err)
		return
	}
	s.log.Info("the datastore answers again")
}

// preflight waits until etcd answers a read. Without it the API server would wait
// as long, in silence, and then end the process.
func (s *controlPlane) preflight(ctx context.Context) error {
	files := transport.TLSInfo{CertFile: s.etcd.CertFile, KeyFile: s.etcd.KeyFile, TrustedCAFile: s.etcd.CAFile}
	var secured *tls.Config
	if !files.Empty() || files.TrustedCAFile != "" {
		var err error
		if secured, err = files.ClientConfig(); err != nil {
			return fmt.Errorf("--datastore-cafile, --datastore-certfile, --datastore-keyfile: %w", err)
		}
	}
	return s.waitForDatastore(ctx, datastoreEndpoint, redacted(s.etcd.Endpoints), func(ctx context.Context) error {
		return readOnce(ctx, s.etcd.Endpoints, secured)
	})
}

// datastoreEndpoint is the option that says where the datastore is.
const datastoreEndpoint = "datastore-endpoint"

// waitForDatastore tries until it works, for a minute at most, and says what it
// waits for; option is what named it. What will not work by waiting it says at once.
func (s *controlPlane) waitForDatastore(ctx context.Context, option, where string, try func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	for {
		err := try(limited)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, external.ErrRefused):
			return fmt.Errorf("--%s %s: %w", option, where, err)
		}
		s.log.Warnf("waiting for the datastore at %s: %v", where, err)
		s.systemd.Status("waiting for the datastore at " + where)
		select {
		case <-time.After(preflightRetry):
		case <-limited.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("--%s %s: no answer in %v: %w", option, where, preflightTimeout, err)
		}
	}
}

// readOnce reads a key that need not be there. The dial blocks and fails with
// its cause: by default, etcd's client would retry until the context ends and
// then say no more than that.
func readOnce(ctx context.Context, endpoints []string, secured *tls.Config) error {
	ctx, cancel := context.WithTimeout(ctx, preflightAttempt)
	defer cancel()
	client, err := clientv3.New(clientv3.Config{
		Context: ctx, Endpoints: endpoints, TLS: secured, DialTimeout: preflightAttempt, Logger: zap.NewNop(),
		//lint:ignore SA1019 etcd's client dials with grpc.DialContext, and only these make it report why that failed
		DialOptions: []grpc.DialOption{grpc.WithBlock(), grpc.WithReturnConnectionError()},
	})
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.Get(ctx, "/registry/health")
	return err
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
