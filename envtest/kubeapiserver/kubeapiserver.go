// Package kubeapiserver is the program kube-apiserver: upstream's flags, with upstream's
// defaults, on an etcd, served by the chain of karve server.
package kubeapiserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"
	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/server/healthz"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/internal/memory"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/server/apiserver"
	"github.com/karve-k8s/karve/server/controllers"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/loopback"
	"github.com/karve-k8s/karve/server/ports"
	"github.com/karve-k8s/karve/server/scheduler"
	"github.com/karve-k8s/karve/server/storage"
)

// Program is one run of kube-apiserver. Its users expect no other program beside it.
type Program struct {
	Args           []string // without the program's name
	Stdout, Stderr io.Writer
	// Controllers runs controllers and scheduler as well.
	Controllers bool
	MemoryLimit int64 // as server.Config has it
}

const (
	// openAnyway is how long connections wait for a server that does not become ready.
	// Then they are served, and its clients see what it waits for.
	openAnyway = 10 * time.Second
	// settleAfter is server.Config.SettleAfter: most suites are over by then.
	settleAfter = 10 * time.Second
	// startTimeout and stopTimeout are the defaults of server.Config.
	startTimeout = 5 * time.Minute
	stopTimeout  = time.Minute
)

// The parts, by the names that users see.
const (
	etcdPart         = "datastore"
	apiserverPart    = "API server"
	controllersPart  = "controllers"
	schedulerPart    = "scheduler"
	firstObjectsPart = "first objects"
)

// program is a Program as it runs.
type program struct {
	Program
	flags   *apiserver.Upstream
	options *options.CompletedOptions
	log     *logrus.Logger
	began   time.Time

	listener  *heldListener // nil: upstream listens
	loopback  *loopback.Server
	collector *memory.Collector // nil: left alone
	stopping  atomic.Bool

	etcd         *storage.Etcd
	api          *apiserver.Part
	*controlling // nil: without controllers
}

// Run does what the flags say: it serves until ctx ends.
func (k Program) Run(ctx context.Context) (err error) {
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
	logbridge.Serve(log)
	p := &program{Program: k, flags: flags, log: log, began: time.Now(), loopback: loopback.NewServer(log.Errorf)}
	if err := p.listen(); err != nil {
		return err
	}
	defer p.release()
	if k.MemoryLimit != 0 {
		p.collector = memory.Begin(k.MemoryLimit, true)
		defer p.collector.End()
	}
	if k.Controllers {
		if p.controlling, err = makeIdentities(flags); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, p.temp.Remove()) }()
	}
	if p.options, err = flags.Complete(ctx); err != nil {
		return err
	}
	parts, err := p.parts()
	if err != nil {
		return err
	}
	return lifecycle.Run(ctx, parts, p.doing, func() error {
		p.announce()
		return nil
	}, func() {})
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

// parts are in the order in which they start.
func (p *program) parts() ([]lifecycle.Part, error) {
	var all []lifecycle.Part
	add := func(name string, run func(context.Context, func()) error, lastError func() error, needs ...string) {
		all = append(all, lifecycle.Within(startTimeout, lifecycle.Part{Name: name, Needs: needs, Run: run}, lastError))
	}
	// If the etcd is Karve's, the first objects of a new cluster are written in one
	// transaction; for another, upstream creates them one by one.
	transport := p.options.Etcd.StorageConfig.Transport
	p.etcd = storage.NewEtcd(storage.EtcdConfig{
		Endpoints: transport.ServerList, Prefix: p.options.Etcd.StorageConfig.Prefix,
		CAFile: transport.TrustedCAFile, CertFile: transport.CertFile, KeyFile: transport.KeyFile,
		Seed: true, Option: "etcd-servers", FileOptions: "--etcd-cafile, --etcd-certfile, --etcd-keyfile",
		Log: p.log, Status: func(string) {},
	})
	p.api = &apiserver.Part{Configure: p.configure, Built: p.built}
	add(etcdPart, p.etcd.Run, func() error { return lifecycle.ErrNoAnswer })
	add(apiserverPart, p.api.Run, p.api.LastError, etcdPart)
	if p.controlling == nil {
		return all, nil
	}
	if err := p.make(p); err != nil {
		return nil, err
	}
	add(controllersPart, p.controllers.Run, p.controllers.LastError, apiserverPart)
	add(schedulerPart, p.scheduler.Run, p.scheduler.LastError, apiserverPart)
	add(firstObjectsPart, p.first.Run, p.first.LastError, apiserverPart)
	return all, nil
}

// configure is the API server as its flags have it.
func (p *program) configure() (apiserver.Config, error) {
	c := apiserver.Config{
		Upstream: p.options, Loopback: p.loopback, Store: p.etcd.Connection().Store,
		TerminationTimeout: stopTimeout, Log: p.log,
	}
	if p.controlling != nil {
		var err error
		if c.Bootstrap, err = p.upstream.Bootstrap(p.store); err != nil {
			return c, err
		}
		c.ReadyChecks = []healthz.HealthChecker{
			healthz.NamedCheck("controllers", p.controllers.Check), healthz.NamedCheck("scheduler", p.scheduler.Check)}
	}
	c.Bootstrap.Log = p.log
	return c, nil
}

// built begins the time after which connections are served anyway.
func (p *program) built() {
	if p.listener != nil {
		p.listener.served.Store(true)
		time.AfterFunc(openAnyway, p.listener.release)
	}
}

func (p *program) doing(verb, part string) {
	p.log.Debugf("%s the %s", verb, part)
	if verb == lifecycle.Stopping && p.stopping.CompareAndSwap(false, true) {
		logbridge.Stopping(true)
	}
}

func (p *program) announce() {
	if p.listener != nil {
		p.listener.release()
	}
	p.log.Infof("kube-apiserver is ready after %v", time.Since(p.began).Round(time.Millisecond))
	if p.collector != nil {
		p.collector.Settle(settleAfter)
	}
}

// controlling is the controllers and the scheduler beside the API server, and the
// certificates that they have for as long as this process runs.
type controlling struct {
	temp     *directory.TempDir
	store    *certs.Store
	upstream *controllers.Upstream

	controllers *controllers.Controllers
	scheduler   *scheduler.Scheduler
	first       *lifecycle.FirstObjects
}

// makeIdentities makes the certificates, and trusts their authority besides the user's.
func makeIdentities(flags *apiserver.Upstream) (_ *controlling, err error) {
	c := &controlling{}
	if c.temp, err = directory.NewPrivate("karve-kube-apiserver-"); err != nil { // removes what a killed suite has left
		return nil, ownership.ExplainTemp(err)
	}
	defer func() {
		if err != nil {
			c.temp.Remove()
		}
	}()
	if c.store, _, err = certs.Ensure(certs.Config{Dir: filepath.Join(c.temp.Dir(), "certs"), NoSync: true}); err != nil {
		return nil, err
	}
	trusted, err := os.ReadFile(c.store.CertFile(certs.ClientCA))
	if err != nil {
		return nil, err
	}
	authentication := flags.Authentication.ClientCert
	if file := authentication.ClientCA; file != "" {
		users, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("--client-ca-file: %w", err)
		}
		trusted = append(append(users, '\n'), trusted...)
	}
	authentication.ClientCA = filepath.Join(c.temp.Dir(), "client-ca-bundle.crt")
	return c, os.WriteFile(authentication.ClientCA, trusted, 0o600)
}

// make makes the parts. The controllers use the keys of the command line: they sign tokens
// with the API server's key, and publish its certificate as what Pods can trust, since
// no flag names the authority behind it.
func (c *controlling) make(p *program) (err error) {
	var args []string
	if file := p.options.SecureServing.ServerCert.CertKey.CertFile; file != "" {
		args = append(args, "root-ca-file="+file)
	}
	if file := p.options.ServiceAccountSigningKeyFile; file != "" {
		args = append(args, "service-account-private-key-file="+file)
	}
	c.upstream, err = controllers.Parse(controllers.Settings{
		Args: args, ServiceClusterIPRange: p.flags.ServiceClusterIPRanges, FlexVolumes: filepath.Join(c.temp.Dir(), "flexvolume"),
	})
	if err != nil {
		return err
	}
	scheduling, err := scheduler.Parse(nil, false)
	if err != nil {
		return err
	}
	clients := func() loopback.Clients {
		return loopback.Clients{Server: p.loopback, Store: c.store, Host: "https://" + ports.Local(p.options.SecureServing.Listener)}
	}
	c.controllers = controllers.New(controllers.Options{Upstream: c.upstream, Connect: func() controllers.Connection {
		return controllers.Connection{
			Client: clients().Config(controllers.Component, certs.ControllerManager), Anonymous: clients().Anonymous(controllers.Component),
			Certificates: c.store, Informers: p.api.Server().Informers(),
		}
	}})
	c.scheduler = scheduler.New(scheduler.Options{Upstream: scheduling, Connect: func() scheduler.Connection {
		return scheduler.Connection{
			Client: clients().Config(scheduler.Component, certs.Scheduler), Informers: p.api.Server().Informers(), Controllers: c.controllers,
		}
	}})
	c.first = &lifecycle.FirstObjects{
		Client:          func() *rest.Config { return clients().Config("karve", certs.Admin) },
		ServiceAccounts: c.upstream.MakesServiceAccounts(),
	}
	return nil
}
