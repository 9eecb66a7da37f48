package storage

import (
	"context"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/sirupsen/logrus"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/karve-k8s/karve/internal/redact"
	"github.com/karve-k8s/karve/kine/etcdapi"
	"github.com/karve-k8s/karve/kine/external"
	"github.com/karve-k8s/karve/kine/location"
	"github.com/karve-k8s/karve/server/lifecycle"
)

// waitTimeout is how long startup waits for the user's datastore, and waitRetry the pause between attempts. The log repeats the
// same reason after waitRepeat.
const (
	waitTimeout = 60 * time.Second
	waitRetry   = time.Second
	waitRepeat  = 15 * time.Second
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
	secured, err := location.EtcdTLS(c.CAFile, c.CertFile, c.KeyFile)
	if err != nil {
		return fmt.Errorf("%s: %w", c.FileOptions, err)
	}
	e.connection = Connection{Endpoints: c.Endpoints, CAFile: c.CAFile, CertFile: c.CertFile, KeyFile: c.KeyFile}
	wait := waiting{c.Option, redact.URLs(c.Endpoints), c.Log, c.Status}
	var client *clientv3.Client
	err = wait.until(ctx, func(ctx context.Context) (err error) {
		var read *etcdserverpb.RangeResponse
		if client, read, err = location.DialEtcd(ctx, c.Endpoints, secured, path.Join("/", c.Prefix, location.Migrating)); err != nil {
			return err
		}
		if len(read.Kvs) > 0 {
			client.Close()
			return unfinished(read.Kvs[0])
		}
		if etcdapi.Ours(read.Header) && c.Seed && len(c.Endpoints) == 1 {
			e.connection.Store = etcdStore{client, c.Endpoints[0]}
		}
		return nil
	})
	if err != nil {
		return err
	}
	defer client.Close()
	e.connection.Ask = func(ctx context.Context, do func(context.Context, clientv3.KV) error) error {
		return do(ctx, client.KV)
	}
	ready()
	if err := wentBack(ctx, func(ctx context.Context) (int64, error) {
		client.ActiveConnection().ResetConnectBackoff() // after an outage, gRPC would wait for two minutes
		read, err := client.Get(ctx, path.Join("/", c.Prefix, location.Migrating), clientv3.WithCountOnly())
		if err != nil {
			return 0, err
		}
		return read.Header.Revision, nil
	}); err != nil {
		lifecycle.Failed(ctx, fmt.Errorf("--%s %s: %w", c.Option, redact.URLs(c.Endpoints), err))
	}
	<-ctx.Done()
	return nil
}

// backEvery is the time between two looks at the newest revision of an etcd, and backLimit bounds one.
const (
	backEvery = 3 * time.Second
	backLimit = 10 * time.Second
)

// wentBack returns an error when the newest revision of an etcd is below an earlier one, twice: one read may be of a kine that follows another.
// It returns nil when ctx ends.
func wentBack(ctx context.Context, newest func(context.Context) (int64, error)) error {
	for last, below := int64(0), false; ; {
		limited, cancel := context.WithTimeout(ctx, backLimit)
		now, err := newest(limited)
		cancel()
		switch {
		case err != nil: // the API server reports that it is away
		case now >= last:
			last, below = now, false
		case below:
			return fmt.Errorf("the etcd went back in time: its newest revision is %d, and was %d. It has other data than this server's caches, which begin anew with the next start. "+
				"Other clients may miss events until they are restarted. To spare that, restore with etcdutl snapshot restore --bump-revision $(date +%%s)000 --mark-compacted", now, last)
		default:
			below = true
		}
		select {
		case <-time.After(backEvery):
		case <-ctx.Done():
			return nil
		}
	}
}

// unfinished is a state that waiting does not cure.
func unfinished(marker *mvccpb.KeyValue) error {
	return fmt.Errorf("%w: %s is there: a migration into this etcd (%s) has not finished: wait for it, or delete its keys and migrate again", external.ErrRefused, marker.Key, marker.Value)
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
	began, said, last := time.Now(), time.Time{}, ""
	for attempts := 1; ; attempts++ {
		err := try(limited)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, external.ErrRefused):
			return fmt.Errorf("--%s %s: %w", w.option, w.where, err)
		}
		if now := time.Now(); err.Error() != last || now.Sub(said) >= waitRepeat {
			said, last = now, err.Error()
			tried := ""
			if attempts > 1 {
				tried = fmt.Sprintf(" (attempt %d, after %v)", attempts, now.Sub(began).Round(time.Second))
			}
			w.log.Warnf("waiting for the datastore at %s: %v%s", w.where, err, tried)
		}
		w.status("waiting for the datastore at " + w.where)
		select {
		case <-time.After(waitRetry):
		case <-limited.Done():
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("--%s %s: not usable in %v: %w", w.option, w.where, waitTimeout, err)
		}
	}
}
