// Package servertest gives a Go test a Kubernetes cluster of its own, in the test's
// process: API server, controllers and scheduler.
//
//	func TestMyController(t *testing.T) {
//		cluster := servertest.Start(t)
//		cluster.CRDs(t, "config/crd/bases")
//		namespace := cluster.Namespace(t)
//		…
//
// It links Kubernetes into the test. The module that imports it needs the replace lines of
// this module's go.mod. Package servertest/process has the same cluster, with the same
// methods, in a karve process, and needs client-go only.
//
// Tests may run in parallel, each with a cluster. Upstream has state that all clusters of a
// process share: the feature gates, the names of informers, the registry of metrics, and
// the loggers of its libraries, whose lines go to the cluster that was started last. The
// names of the controllers' informers may exist only once. So a process has one cluster
// with controllers at a time, and any number of those with [APIOnly], all with the same
// feature gates. Any other cluster runs in a child process, which is this program again,
// and ends with it.
package servertest

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/servertest/process"
)

// Option changes how a cluster is started.
type Option func(*options)

type options struct {
	server.Config
	gates    []string
	separate bool
}

// APIOnly leaves out the controllers and the scheduler, and the admission of service
// accounts, which would wait for them. What remains is what etcd and kube-apiserver alone
// are.
func APIOnly() Option {
	return func(o *options) {
		o.NoControllers, o.DisableScheduler = true, true
		o.APIServerArgs = append(o.APIServerArgs, "disable-admission-plugins=ServiceAccount")
	}
}

// WithoutControllers leaves out some controllers, by upstream's names.
func WithoutControllers(names ...string) Option {
	return func(o *options) { o.DisableControllers = append(o.DisableControllers, names...) }
}

// FeatureGates sets upstream's feature gates in all parts, each as Name=true or Name=false.
func FeatureGates(gates ...string) Option {
	return func(o *options) { o.gates = append(o.gates, gates...) }
}

// Nodes adds n simulated nodes. Pods are scheduled to them, become ready, end and are
// deleted as if they ran. Annotations of Pods and Nodes make them fail; docs/testing.md
// lists them.
func Nodes(n int) Option { return func(o *options) { o.SimulateNodes = n } }

// DataDir is where the cluster's state stays after the test. A cluster that is already
// there continues. Without it, the state is deleted with the test.
func DataDir(dir string) Option { return func(o *options) { o.DataDir = dir } }

// Configure changes anything else in the server's configuration. The package itself sets
// Log and Ready. Use [FeatureGates] for feature gates.
func Configure(change func(*server.Config)) Option {
	return func(o *options) { change(&o.Config) }
}

// Separate starts the cluster in a child process, even where that is not necessary.
func Separate() Option { return func(o *options) { o.separate = true } }

// Server is a running cluster, as its administrator sees it. Its methods fail the test that
// they get.
type Server struct {
	*process.Cluster

	run  *instance
	base process.Base
}

// instance is a control plane, with what is needed to start it again.
type instance struct {
	config   server.Config
	gates    []string
	separate bool // in a child process, because the user wants that
	running
}

// running is a control plane, here or in a child process.
type running interface {
	stop() error
	log() string
}

// Start runs a cluster and returns when everything is ready. The cluster ends with the
// test. The test fails, with the server's log, if the cluster does not start, does not end
// cleanly, or leaves goroutines or open files behind.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	o := options{Config: server.Config{BindAddress: "127.0.0.1", DisableInsecure: true, SettleAfter: 10 * time.Second}}
	for _, opt := range opts {
		opt(&o)
	}
	if o.DataDir == "" {
		o.DataDir = filepath.Join(process.TempDir(t), "karve")
	}
	if o.DatastoreEndpoint == "" {
		o.DatastoreEndpoint = relaxed(o.DataDir)
	}
	slices.Sort(o.gates)
	for _, gate := range o.gates {
		o.APIServerArgs = append(o.APIServerArgs, "feature-gates="+gate)
	}
	run := &instance{config: o.Config, gates: o.gates, separate: o.separate}
	if err := run.start(); err != nil {
		t.Fatal(err)
	}
	s := newServer(nil, run)
	t.Cleanup(func() {
		s.base.End(t)
		if err := run.Stop(); err != nil {
			t.Errorf("%v; the server's log:\n%s", err, run.Log())
		}
	})
	cluster, err := process.Connect(filepath.Join(o.DataDir, "admin.kubeconfig"), !o.NoControllers)
	if err != nil {
		t.Fatal(err)
	}
	s.Cluster = cluster
	return s
}

func newServer(cluster *process.Cluster, run *instance) *Server {
	s := &Server{Cluster: cluster, run: run}
	s.base.Take = func(ctx context.Context) (*process.Forks, error) {
		return process.NewForks(ctx, s.Cluster, run.DataDir(), run.fork)
	}
	return s
}

// relaxed returns the endpoint of a datastore whose commits are not synced. They survive
// the end of this process, which is enough here.
func relaxed(dir string) string {
	return "sqlite://" + (&url.URL{Path: dir}).EscapedPath() + "?durability=relaxed"
}

func (i *instance) start() error {
	if i.separate || !shared.take(i.gates, !i.config.NoControllers) {
		started, err := startChild(i.config)
		if err == nil {
			i.running = started
		}
		return err
	}
	here, err := startHere(i.config)
	if err != nil {
		shared.release(!i.config.NoControllers)
		return err
	}
	i.running = here
	return nil
}

// DataDir, Log and Stop make it a process.Instance.
func (i *instance) DataDir() string { return i.config.DataDir }
func (i *instance) Log() string     { return i.log() }
func (i *instance) Stop() error     { return i.stop() }

// Restart stops the cluster and starts it again, with its objects and at the same address.
// Watches end and connections break, as they do for every client of a server that restarts.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	address, err := url.Parse(s.Config().Host)
	if err != nil {
		t.Fatal(err)
	}
	run := s.run
	if run.config.SecurePort, err = strconv.Atoi(address.Port()); err != nil {
		t.Fatal(err)
	}
	_, run.separate = run.running.(child) // it stays where it is
	if err := run.Stop(); err != nil {
		t.Fatalf("%v; the server's log:\n%s", err, run.Log())
	}
	if err := run.start(); err != nil {
		run.running = stopped{}
		t.Fatal(err)
	}
}

// Log returns what the server has logged since its last start.
func (s *Server) Log() string { return s.run.Log() }

// stopped is the control plane that a failed restart leaves behind.
type stopped struct{}

func (stopped) stop() error { return nil }
func (stopped) log() string { return "" }

// shared is the state that the control planes of this process share.
var shared state

type state struct {
	mu          sync.Mutex
	running     int
	gates       []string
	controllers bool // one of them has controllers
}

// take counts a control plane, if it can run beside the present ones: with the same feature
// gates, and with controllers only if no other has them. Gates that no cluster sets return
// to their defaults with the last one.
func (s *state) take(gates []string, controllers bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running > 0 && (!slices.Equal(s.gates, gates) || s.controllers && controllers) {
		return false
	}
	s.running++
	s.gates = gates
	s.controllers = s.controllers || controllers
	return true
}

// release undoes take, and reports whether it was the last one.
func (s *state) release(controllers bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
	s.controllers = s.controllers && !controllers
	return s.running == 0
}

// here is a control plane in this process.
type here struct {
	config server.Config
	cancel context.CancelFunc
	text   process.Text
	done   chan struct{}
	err    error // of Run; valid once done is closed
}

func startHere(config server.Config) (*here, error) {
	h := &here{config: config, done: make(chan struct{})}
	if config.Log == nil {
		h.config.Log, _ = logbridge.New(&h.text, "text", "info") // these are valid
	}
	ready := make(chan struct{})
	h.config.Ready = func(server.Info) { close(ready) }
	ctx, cancel := context.WithCancel(context.Background())
	h.cancel = cancel
	go func() {
		defer close(h.done)
		h.err = server.Run(ctx, h.config)
	}()
	select {
	case <-ready:
		return h, nil
	case <-h.done:
		return nil, fmt.Errorf("the cluster did not start: %w\n%s", h.err, h.log())
	case <-time.After(process.StartLimit):
		cancel()
		return nil, fmt.Errorf("the cluster is not ready after %v:\n%s", process.StartLimit, h.log())
	}
}

func (h *here) log() string { return h.text.String() }

func (h *here) stop() error {
	h.cancel()
	select {
	case <-h.done:
	case <-time.After(process.StopLimit):
		return fmt.Errorf("the cluster was still running %v after it was told to stop; its goroutines:\n%s", process.StopLimit, strings.Join(Goroutines(), "\n\n"))
	}
	last := shared.release(!h.config.NoControllers)
	if h.err != nil {
		return h.err
	}
	if !last { // the goroutines may be another cluster's
		return OpenFiles(h.config.DataDir)
	}
	return Leaks(h.config.DataDir)
}
