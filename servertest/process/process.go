// Package process gives a Go test a Kubernetes cluster of its own: API server,
// controllers and scheduler, in a karve process that ends with the test, even if
// the test is killed.
//
//	func TestMyController(t *testing.T) {
//		cluster := process.Start(t)
//		cluster.CRDs(t, "config/crd/bases")
//		manager := mycontroller.New(cluster.Config())
//		…
//		namespace := cluster.Namespace(t)
//
// It runs the program that [Binary] or [BinaryVariable] names, or else karve in the PATH. The
// package is a module of its own, with few dependencies beside client-go.
package process

import (
	"net/url"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

// Option changes how a cluster is started.
type Option func(*options)

type options struct {
	binary  string
	dataDir string
	apiOnly bool
	args    []string
}

// Binary is the karve program, as a path or as a name in the PATH.
func Binary(path string) Option { return func(o *options) { o.binary = path } }

// APIOnly leaves out the controllers and the scheduler, and the admission of service
// accounts, which would wait for them. What remains is what etcd and kube-apiserver alone
// are.
func APIOnly() Option { return func(o *options) { o.apiOnly = true } }

// WithoutControllers leaves out some controllers, by upstream's names.
func WithoutControllers(names ...string) Option {
	return func(o *options) {
		for _, name := range names {
			o.args = append(o.args, "--disable-controllers", name)
		}
	}
}

// FeatureGates sets upstream's feature gates in all parts, each as Name=true or Name=false.
func FeatureGates(gates ...string) Option {
	return func(o *options) {
		for _, gate := range gates {
			o.args = append(o.args, "--feature-gates", gate)
		}
	}
}

// Args adds options of `karve server`, such as --tls-san.
func Args(args ...string) Option { return func(o *options) { o.args = append(o.args, args...) } }

// Nodes adds n simulated nodes. Pods are scheduled to them, become ready, end and are
// deleted as if they ran. Annotations of Pods and Nodes make them fail; docs/testing.md of
// karve lists them.
func Nodes(n int) Option {
	return func(o *options) { o.args = append(o.args, "--simulate-nodes", strconv.Itoa(n)) }
}

// DataDir is where the cluster's state stays after the test. A cluster that is already
// there continues. Without it, the state is deleted with the test.
func DataDir(dir string) Option { return func(o *options) { o.dataDir = dir } }

// Server is a running cluster, as its administrator sees it. Its methods fail the test that
// they get.
type Server struct {
	*Cluster

	run *instance

	mu    sync.Mutex
	forks *forks // of the last snapshot; nil: there is none
}

// Start runs a cluster and returns when everything is ready. The cluster ends with the
// test. The test fails, with the server's log, if the cluster does not start or does not
// end cleanly.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	var err error
	if o.binary, err = program(o.binary); err != nil {
		t.Fatal(err)
	}
	s := &Server{run: &instance{options: o, dir: o.dataDir}}
	if s.run.dir == "" {
		s.run.dir = clusterDir(t)
	}
	if err := s.run.launch("0"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.end(t)
		if err := s.run.stop(); err != nil {
			t.Errorf("%v; the server's log:\n%s", err, s.Log())
		}
	})
	if s.Cluster, err = connect(filepath.Join(s.run.dir, "admin.kubeconfig"), !o.apiOnly); err != nil {
		t.Fatal(err)
	}
	return s
}

// Restart stops the cluster and starts it again, with its objects and at the same address.
// Watches end and connections break, as they do for every client of a server that restarts.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	address, err := url.Parse(s.config.Host)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.run.stop(); err != nil {
		t.Fatalf("%v; the server's log:\n%s", err, s.Log())
	}
	if err := s.run.launch(address.Port()); err != nil {
		t.Fatal(err)
	}
}

// Log returns what the server has logged since its last start.
func (s *Server) Log() string { return s.run.log.String() }

// Snapshot takes a snapshot of the cluster as it is now, with which [Server.Fork] begins.
// It waits a few seconds at most for the cluster to come to rest.
func (s *Server) Snapshot(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.endForks()
	if err == nil {
		s.forks, err = newForks(t.Context(), s)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Fork returns another cluster with the same objects, certificates and kinds as this one
// had at its last [Server.Snapshot]. If there was none, Fork takes one now. The fork
// belongs to the test until the test ends. It runs beside this cluster and other forks, and
// has the options of this one, except a fixed port or data directory. A client of the fork
// must end with the test: the same process becomes the next fork, once it is as the
// snapshot was.
//
// This cluster must still run. So tests that use forks are subtests of its test.
func (s *Server) Fork(t testing.TB) *Server {
	t.Helper()
	var err error
	s.mu.Lock()
	if s.forks == nil {
		s.forks, err = newForks(t.Context(), s)
	}
	forks := s.forks
	s.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
	one, err := forks.take()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { forks.give(one) })
	fork := &Server{Cluster: one.Cluster, run: one.run}
	t.Cleanup(func() { fork.end(t) })
	return fork
}

// end ends the forks that no test has. The test fails if one of them did not end cleanly.
func (s *Server) end(t testing.TB) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.endForks(); err != nil {
		t.Errorf("forks: %v", err)
	}
}

func (s *Server) endForks() error {
	if s.forks == nil {
		return nil
	}
	defer func() { s.forks = nil }()
	return s.forks.close()
}
