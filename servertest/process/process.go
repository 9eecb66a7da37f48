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
// The machine needs only Go: [Program] downloads karve if there is none. The package is a
// module of its own, with few dependencies beside client-go. Package servertest, beside it,
// runs the same cluster in the test's own process, but links Kubernetes into the test.
package process

import (
	"context"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"testing"
)

// BinaryVariable is the variable that names the karve program of all clusters without [Binary]:
// see [Program].
const BinaryVariable = "KARVE_BINARY"

// Option changes how a cluster is started.
type Option func(*options)

type options struct {
	binary  string
	dataDir string
	apiOnly bool
	args    []string
}

// Binary is the path of the karve program, in the place of the one that [Program] finds.
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

	run  *instance
	base Base
}

// instance is the process of a cluster, with what is needed to start it again.
type instance struct {
	options options
	dir     string
	child   *Child
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
	if o.binary == "" {
		o.binary, err = Program(t.Context())
	} else {
		o.binary, err = exec.LookPath(o.binary)
	}
	if err != nil {
		t.Fatal(err)
	}
	run := &instance{options: o, dir: o.dataDir}
	if run.dir == "" {
		run.dir = filepath.Join(TempDir(t), "karve")
	}
	if err := run.launch("0"); err != nil {
		t.Fatal(err)
	}
	s := newServer(nil, run)
	t.Cleanup(func() {
		s.base.End(t)
		if err := run.Stop(); err != nil {
			t.Errorf("%v; the server's log:\n%s", err, run.Log())
		}
	})
	if s.Cluster, err = Connect(filepath.Join(run.dir, "admin.kubeconfig"), !o.apiOnly); err != nil {
		t.Fatal(err)
	}
	return s
}

func newServer(cluster *Cluster, run *instance) *Server {
	s := &Server{Cluster: cluster, run: run}
	s.base.Take = func(ctx context.Context) (*Forks, error) { return NewForks(ctx, s.Cluster, run.dir, run.fork) }
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
	if err := s.run.Stop(); err != nil {
		t.Fatalf("%v; the server's log:\n%s", err, s.run.Log())
	}
	if err := s.run.launch(address.Port()); err != nil {
		t.Fatal(err)
	}
}

// Log returns what the server has logged since its last start.
func (s *Server) Log() string { return s.run.Log() }

// Snapshot takes a snapshot of the cluster as it is now, with which [Server.Fork] begins.
// It waits a few seconds at most for the cluster to come to rest.
func (s *Server) Snapshot(t testing.TB) {
	t.Helper()
	s.base.Snapshot(t)
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
	run, cluster := s.base.Fork(t)
	fork := newServer(cluster, run.(*instance))
	t.Cleanup(func() { fork.base.End(t) })
	return fork
}

// fork starts another cluster with the options of this one.
func (i *instance) fork(snapshot, dir string) (Instance, error) {
	other := &instance{options: i.options, dir: dir}
	return other, other.launch("0", "--fork-from", snapshot)
}

// readyLine begins what karve prints when everything is ready.
var readyLine = regexp.MustCompile(`(?m)^karve is ready after .*\n`)

// launch starts the process and waits until it is ready.
func (i *instance) launch(port string, more ...string) error {
	// Commits are not synced. They survive the end of the process, which is enough here.
	args := []string{"server", "--config", os.DevNull, "--data-dir", i.dir, "--stop-with-stdin", "--settle-after", "10s",
		"--bind-address", "127.0.0.1", "--insecure-port", "0",
		"--datastore-endpoint", "sqlite://" + (&url.URL{Path: i.dir}).EscapedPath() + "?durability=relaxed"}
	if i.options.apiOnly {
		args = append(args, "--no-controllers", "--disable-scheduler", "--disable-admission-plugins", "ServiceAccount")
	}
	args = slices.Concat(args, i.options.args, more, []string{"--secure-port", port})
	child, err := StartChild(exec.Command(i.options.binary, args...), readyLine)
	if err == nil {
		i.child = child
	}
	return err
}

// DataDir, Log and Stop make it an Instance.
func (i *instance) DataDir() string { return i.dir }
func (i *instance) Log() string     { return i.child.Log() }
func (i *instance) Stop() error     { return i.child.Stop() }
