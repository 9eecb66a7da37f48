package storage

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/karve-k8s/karve/kine/etcdapi"
	"github.com/karve-k8s/karve/kine/external"
)

// waitTimeout is how long startup waits for the user's datastore, waitAttempt the limit of one
// attempt, and waitRetry the pause between attempts.
const (
	waitTimeout = 60 * time.Second
	waitAttempt = 3 * time.Second
	waitRetry   = time.Second
)

// EtcdConfig describes the user's etcd, and the options that name it.
type EtcdConfig struct {
	Endpoints                 []string
	CAFile, CertFile, KeyFile string
	Prefix                    string // of the API server's keys

	// Seed permits one transaction for all first objects of a new cluster, if the etcd is Karve's
	// own in another process.
	Seed bool

	Option      string // the option with the endpoints, without dashes
	FileOptions string // the options with the files, for messages
	Log         *logrus.Logger
	Status      func(string)
}

// Etcd is the part for the user's etcd. It waits until the etcd answers. Otherwise the API server
// would wait as long without a message, and then exit.
type Etcd struct {
	config     EtcdConfig
	connection Connection
}

// NewEtcd returns the part. It connects in Run.
func NewEtcd(c EtcdConfig) *Etcd { return &Etcd{config: c} }

// Connection is valid once Run has called ready.
func (e *Etcd) Connection() Connection { return e.connection }

// Run calls ready when the etcd answers a read.
func (e *Etcd) Run(ctx context.Context, ready func()) error {
	c := e.config
	files := transport.TLSInfo{CertFile: c.CertFile, KeyFile: c.KeyFile, TrustedCAFile: c.CAFile}
	var secured *tls.Config
	if !files.Empty() || files.TrustedCAFile != "" {
		var err error
		if secured, err = files.ClientConfig(); err != nil {
			return fmt.Errorf("%s: %w", c.FileOptions, err)
		}
	}
	e.connection = Connection{Endpoints: c.Endpoints, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile}
	wait := waiting{c.Option, redacted(c.Endpoints), c.Log, c.Status}
	var client *clientv3.Client
	err := wait.until(ctx, func(ctx context.Context) (err error) {
		var karves bool
		client, karves, err = e.dial(ctx, secured)
		if karves && c.Seed && len(c.Endpoints) == 1 {
			e.connection.Store = etcdStore{client, c.Endpoints[0]}
		}
		return err
	})
	if err != nil {
		return err
	}
	if e.connection.Store == nil {
		client.Close() // nothing else uses it
	} else {
		defer client.Close()
	}
	ready()
	<-ctx.Done()
	return nil
}

// dial makes a client, and reads a key that need not exist. It reports whether the server is
// Karve's datastore.
//
// It tries once, and fails with the cause. The client's own Get would wait for a connection until the
// context ends, and report only that. The client outlives ctx.
func (e *Etcd) dial(ctx context.Context, secured *tls.Config) (_ *clientv3.Client, karves bool, err error) {
	client, err := clientv3.New(clientv3.Config{
		Context: context.WithoutCancel(ctx), Endpoints: e.config.Endpoints, TLS: secured, Logger: zap.NewNop(),
	})
	if err != nil {
		return nil, false, err
	}
	ctx, cancel := context.WithTimeout(ctx, waitAttempt)
	defer cancel()
	read := &etcdserverpb.RangeRequest{Key: []byte(path.Join("/", e.config.Prefix, "health"))}
	resp, err := etcdserverpb.NewKVClient(client.ActiveConnection()).Range(ctx, read, grpc.WaitForReady(false))
	if err != nil {
		client.Close()
		return nil, false, clientv3.ContextError(ctx, err)
	}
	return client, etcdapi.Ours(resp.Header), nil
}

// waiting waits for the user's datastore.
type waiting struct {
	option string // the option that names the datastore, without dashes
	where  string // the location of the datastore, for messages
	log    *logrus.Logger
	status func(string)
}

// until calls try until it succeeds, for waitTimeout at most, and logs what it waits for. It
// returns immediately if waiting cannot cure the error.
func (w waiting) until(ctx context.Context, try func(context.Context) error) error {
	limited, cancel := context.WithTimeout(ctx, waitTimeout)
	defer cancel()
	for {
		err := try(limited)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, external.ErrRefused):
			return fmt.Errorf("--%s %s: %w", w.option, w.where, err)
		}
		w.log.Warnf("waiting for the datastore at %s: %v", w.where, err)
		w.status("waiting for the datastore at " + w.where)
		select {
		case <-time.After(waitRetry):
		case <-limited.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("--%s %s: no answer in %v: %w", w.option, w.where, waitTimeout, err)
		}
	}
}
