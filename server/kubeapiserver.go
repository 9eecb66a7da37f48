package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/apiserver/replacements"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/storage"
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
	etcd    *storage.Etcd
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

	// If the etcd is Karve's, the first objects of a new cluster are written in one
	// transaction; for another, upstream makes them one by one.
	transport := s.options.Etcd.StorageConfig.Transport
	s.etcd = storage.NewEtcd(storage.EtcdConfig{
		Endpoints: transport.ServerList, Prefix: s.options.Etcd.StorageConfig.Prefix,
		CAFile: transport.TrustedCAFile, CertFile: transport.CertFile, KeyFile: transport.KeyFile,
		Seed: true, Option: "etcd-servers", FileOptions: "--etcd-cafile, --etcd-certfile, --etcd-keyfile",
		Log: log, Status: func(string) {},
	})
	parts := []lifecycle.Part{
		{Name: datastorePart, Run: s.etcd.Run},
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
		replacements.ShortenGoodbyes()
	}
	return nil
}

// runUpstream is the API server as its flags have it.
func (s *upstreamServer) runUpstream(ctx context.Context, ready func()) error {
	bootstrapping, err := s.bootstrapOptions()
	if err != nil {
		return err
	}
	config := apiserver.Config{
		Upstream: s.options, Loopback: s.loopback, Store: s.etcd.Connection().Store, Bootstrap: bootstrapping,
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
