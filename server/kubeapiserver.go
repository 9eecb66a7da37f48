package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"go.etcd.io/etcd/client/pkg/v3/transport"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/karve-k8s/karve/bootstrap"
	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/kine/etcdapi"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/lifecycle"
)

// KubeAPIServer is the program kube-apiserver: upstream's flags, with upstream's
// defaults, on an etcd, served by the chain that [Run] serves. Who starts it expects
// nothing beside it.
type KubeAPIServer struct {
	Args           []string // without the program's name
	Stdout, Stderr io.Writer
	// Controllers runs controllers and scheduler as well.
	Controllers bool
	MemoryLimit int64 // see Config
}

// openAnyway is how long connections wait for a server that does not become ready.
// Then they are served, and told what it waits for.
const openAnyway = 10 * time.Second

// settleAfter is Config.SettleAfter: most suites are over by then.
const settleAfter = 10 * time.Second

// upstreamServer is a KubeAPIServer as it is started.
type upstreamServer struct {
	*controlPlane
	flags   *apiserver.Upstream
	options *options.CompletedOptions
	door    *heldListener // nil: upstream listens
	dir     string        // of the certificates of controllers and scheduler; empty without
}

// Run does what the flags say: it serves until ctx ends.
func (k KubeAPIServer) Run(ctx context.Context) (err error) {
	flags, err := apiserver.ParseUpstream(k.Args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		flags.Help(k.Stdout)
		return nil
	case err != nil:
		return err
	}
	flags.PrintVersion()
	gates, err := flags.Gates()
	if err != nil {
		return err
	}
	releaseGates, err := gates.Hold()
	if err != nil {
		return err
	}
	defer releaseGates()
	log, err := upstreamLog(flags, k.Stderr)
	if err != nil {
		return err
	}
	s := &upstreamServer{flags: flags}
	s.controlPlane = newControlPlane(Config{
		ServiceClusterIPRange: flags.ServiceClusterIPRanges,
		DatastoreEndpoint:     strings.Join(flags.Etcd.StorageConfig.Transport.ServerList, ","),
		NoControllers:         !k.Controllers,
		DisableScheduler:      !k.Controllers,
		MemoryLimit:           k.MemoryLimit,
		SettleAfter:           settleAfter,
		Log:                   log,
	})
	defer s.release()
	if err := s.listen(); err != nil {
		return err
	}
	if s.MemoryLimit != 0 {
		s.collector = memory.Begin(s.MemoryLimit, true)
		defer s.collector.End()
	}
	defer s.settling.Wait()
	if k.Controllers {
		defer func() { err = errors.Join(err, os.RemoveAll(s.dir)) }()
		if err := s.makeIdentities(); err != nil {
			return err
		}
	}
	if s.options, err = flags.Complete(ctx, log); err != nil {
		return err
	}
	if k.Controllers {
		s.adoptKeys()
	}

	parts := []lifecycle.Part{
		{Name: datastorePart, Run: s.runEtcd},
		{Name: apiserverPart, Needs: []string{datastorePart}, Run: s.runUpstream},
	}
	if k.Controllers {
		if err := s.makeControllers(); err != nil {
			return err
		}
		parts = append(parts, lifecycle.Part{Name: controllersPart, Needs: []string{apiserverPart}, Run: s.controllers.Run},
			lifecycle.Part{Name: schedulerPart, Needs: []string{apiserverPart}, Run: s.scheduler.Run},
			lifecycle.Part{Name: firstObjectsPart, Needs: []string{apiserverPart}, Run: s.runFirstObjects})
	}
	for i, p := range parts {
		parts[i] = lifecycle.Traced(s.trace, lifecycle.Within(s.StartTimeout, p, s.lastErrorOf(p.Name)))
	}
	background, cancel := context.WithCancel(ctx)
	defer cancel()
	return lifecycle.Run(ctx, parts, s.doing, func() error { return s.ready(background) })
}

// upstreamLog is where kube-apiserver's log goes: what -v 1 adds are the lines that
// upstream writes at all times.
func upstreamLog(flags *apiserver.Upstream, w io.Writer) (*logrus.Logger, error) {
	level := "info"
	switch v := flags.Logs.Verbosity; {
	case v >= 2:
		level = "trace"
	case v >= 1:
		level = "debug"
	}
	return logbridge.New(w, flags.Logs.Format, level)
}

// listen takes the port at once. Who connects before the server is ready waits: those
// who would be refused look again after 100 ms or more, and so does envtest.
func (s *upstreamServer) listen() error {
	serving := s.flags.SecureServing
	if serving.PermitPortSharing || serving.PermitAddressSharing || serving.BindPort == 0 {
		return nil // upstream's own has an option for it, or something to say about it
	}
	l, err := listen(securePort, serving.BindAddress.String(), serving.BindPort)
	if err != nil {
		return err
	}
	s.door = &heldListener{Listener: l, open: make(chan struct{})}
	s.secure, serving.Listener = s.door, s.door
	if serving.BindAddress.IsLoopback() {
		apiserver.ShortenGoodbyes()
	}
	return nil
}

// runEtcd waits for the etcd. If it is Karve's, a new cluster's first objects can be
// written at once, where upstream's server has them made one by one.
func (s *upstreamServer) runEtcd(ctx context.Context, ready func()) error {
	t := s.options.Etcd.StorageConfig.Transport
	files := transport.TLSInfo{CertFile: t.CertFile, KeyFile: t.KeyFile, TrustedCAFile: t.TrustedCAFile}
	var secured *tls.Config
	if !files.Empty() || files.TrustedCAFile != "" {
		var err error
		if secured, err = files.ClientConfig(); err != nil {
			return fmt.Errorf("--etcd-cafile, --etcd-certfile, --etcd-keyfile: %w", err)
		}
	}
	var client *clientv3.Client
	err := s.waitForDatastore(ctx, "etcd-servers", redacted(t.ServerList), func(ctx context.Context) (err error) {
		client, err = s.dialEtcd(ctx, t.ServerList, secured)
		return err
	})
	if err != nil {
		return err
	}
	defer client.Close()
	if s.store != nil {
		s.store = etcdStore{client, t.ServerList[0]}
	}
	ready()
	<-ctx.Done()
	return nil
}

// dialEtcd makes a client and tries it.
func (s *upstreamServer) dialEtcd(ctx context.Context, servers []string, secured *tls.Config) (*clientv3.Client, error) {
	// The context is the client's life; the dial has a limit of its own.
	client, err := clientv3.New(clientv3.Config{
		Endpoints: servers, TLS: secured, DialTimeout: preflightAttempt, Logger: zap.NewNop(),
		//lint:ignore SA1019 etcd's client dials with grpc.DialContext, and only these make it report why that failed
		DialOptions: []grpc.DialOption{grpc.WithBlock(), grpc.WithReturnConnectionError()},
	})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, preflightAttempt)
	defer cancel()
	resp, err := client.Get(ctx, path.Join("/", s.options.Etcd.StorageConfig.Prefix, "health"))
	if err != nil {
		client.Close()
		return nil, err
	}
	if len(servers) == 1 && etcdapi.Ours(resp.Header) {
		s.store = etcdStore{}
	}
	return client, nil
}

// etcdStore is Karve's datastore in another process as bootstrap.Store.
type etcdStore struct {
	client   *clientv3.Client
	endpoint string
}

func (e etcdStore) Endpoint() string { return e.endpoint }

func (e etcdStore) Empty(ctx context.Context, prefix string) (bool, error) {
	resp, err := e.client.Get(ctx, prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
	return err == nil && resp.Count == 0, err
}

func (e etcdStore) CreateAll(ctx context.Context, prefix string, objects []bootstrap.KeyValue) error {
	var puts []clientv3.Op
	for _, o := range objects {
		puts = append(puts, clientv3.OpPut(o.Key, string(o.Value)))
	}
	none := clientv3.Compare(clientv3.CreateRevision(prefix).WithPrefix(), "=", 0)
	_, err := e.client.Txn(ctx).If(none).Then(puts...).Commit()
	return err
}

// runUpstream is the API server as its flags have it.
func (s *upstreamServer) runUpstream(ctx context.Context, ready func()) error {
	bootstrapping, err := s.bootstrapOptions()
	if err != nil {
		return err
	}
	config := apiserver.Config{
		Upstream: s.options, Loopback: s.loopback, Store: s.store, Bootstrap: bootstrapping,
		TerminationTimeout: s.StopTimeout, Log: s.log, Step: s.stepsOf(apiserverPart),
	}
	if !s.NoControllers {
		config.ReadyChecks = []healthz.HealthChecker{
			healthz.NamedCheck("controllers", s.controllers.Check), healthz.NamedCheck("scheduler", s.scheduler.Check)}
	}
	defer s.loopback.Close()
	api, err := apiserver.New(ctx, config)
	if err != nil {
		return err
	}
	s.api.Store(api)
	if s.door != nil {
		defer time.AfterFunc(openAnyway, s.door.release).Stop()
	}
	return api.Run(ctx, ready)
}

func (s *upstreamServer) doing(verb, part string) {
	s.log.Debugf("%s the %s", verb, part)
	if verb == lifecycle.Stopping && s.stopping.CompareAndSwap(false, true) {
		logbridge.Stopping(true)
	}
}

func (s *upstreamServer) ready(background context.Context) error {
	s.up.Store(true)
	if s.door != nil {
		s.door.release()
	}
	s.log.Infof("kube-apiserver is ready after %v", time.Since(s.began).Round(time.Millisecond))
	s.settling.Go(func() { s.settle(background) })
	return nil
}

// makeIdentities makes certificates that controllers and scheduler have for as long as
// this process runs, and trusts their authority besides the user's.
func (s *upstreamServer) makeIdentities() (err error) {
	if s.dir, err = os.MkdirTemp("", "kube-apiserver-"); err != nil {
		return err
	}
	s.DataDir = s.dir
	if s.certs, _, err = certs.Ensure(certs.Config{Dir: s.path("certs"), NoSync: true}); err != nil {
		return err
	}
	trusted, err := os.ReadFile(s.certs.CertFile(certs.ClientCA))
	if err != nil {
		return err
	}
	authentication := s.flags.Authentication.ClientCert
	if file := authentication.ClientCA; file != "" {
		users, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("--client-ca-file: %w", err)
		}
		trusted = append(append(users, '\n'), trusted...)
	}
	authentication.ClientCA = s.path("client-ca-bundle.crt")
	return os.WriteFile(authentication.ClientCA, trusted, 0o600)
}

// adoptKeys makes the controllers use the keys of the command line: they sign tokens with
// the API server's key, and publish its certificate as what Pods can trust, since
// nobody names the authority behind it.
func (s *upstreamServer) adoptKeys() {
	serving := s.options.SecureServing.ServerCert
	if serving.CertKey.CertFile != "" {
		s.ControllerManagerArgs = append(s.ControllerManagerArgs, "root-ca-file="+serving.CertKey.CertFile)
	}
	if key := s.options.ServiceAccountSigningKeyFile; key != "" {
		s.ControllerManagerArgs = append(s.ControllerManagerArgs, "service-account-private-key-file="+key)
	}
}

// heldListener has connections wait until it is released or closed.
type heldListener struct {
	net.Listener
	open chan struct{}
	once sync.Once
}

func (l *heldListener) release() { l.once.Do(func() { close(l.open) }) }

func (l *heldListener) Accept() (net.Conn, error) {
	<-l.open
	return l.Listener.Accept()
}

func (l *heldListener) Close() error {
	err := l.Listener.Close()
	l.release() // Accept says that it is closed
	return err
}
