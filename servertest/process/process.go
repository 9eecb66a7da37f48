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
// It is a module of its own, which needs client-go and nothing else: package
// servertest, beside it, runs the same in the test's own process, but links
// Kubernetes into the test.
package process

import (
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"
)

// BinaryVariable names the karve program to run; without it and without [Binary]
// it is looked for in the PATH.
const BinaryVariable = "KARVE_BINARY"

// Option changes how a cluster is started.
type Option func(*options)

type options struct {
	binary  string
	dataDir string
	apiOnly bool
	args    []string
}

// Binary is the path of the karve program.
func Binary(path string) Option { return func(o *options) { o.binary = path } }

// APIOnly leaves controllers and scheduler out, and the admission of service
// accounts, which would wait for them: what etcd and kube-apiserver alone are.
func APIOnly() Option { return func(o *options) { o.apiOnly = true } }

// WithoutControllers leaves some out, by upstream's names.
func WithoutControllers(names ...string) Option {
	return func(o *options) {
		for _, name := range names {
			o.args = append(o.args, "--disable-controllers", name)
		}
	}
}

// FeatureGates sets upstream's, each as Name=true or Name=false, in all parts.
func FeatureGates(gates ...string) Option {
	return func(o *options) {
		for _, gate := range gates {
			o.args = append(o.args, "--feature-gates", gate)
		}
	}
}

// Args are options of `karve server`, such as --tls-san.
func Args(args ...string) Option { return func(o *options) { o.args = append(o.args, args...) } }

// Nodes has n simulated nodes: Pods are scheduled to them, become ready, end and are
// deleted as if they ran. Annotations of Pods and Nodes make them fail; docs/testing.md
// of karve lists them.
func Nodes(n int) Option {
	return func(o *options) { o.args = append(o.args, "--simulate-nodes", strconv.Itoa(n)) }
}

// DataDir is where the cluster's state stays after the test; a cluster that is
// there goes on. Without it the state goes with the test.
func DataDir(dir string) Option { return func(o *options) { o.dataDir = dir } }

// Server is a running cluster, as its administrator sees it. Its methods fail
// the test that they are given.
type Server struct {
	*Cluster

	args  []string
	dir   string
	child *Child
}

// Start runs a cluster and returns when everything is ready. It ends with the
// test. The test fails, with the server's log, if it does not start or does not
// end cleanly.
func Start(t testing.TB, opts ...Option) *Server {
	t.Helper()
	var o options
	for _, opt := range opts {
		opt(&o)
	}
	binary, err := o.program()
	if err != nil {
		t.Fatal(err)
	}
	s := &Server{dir: o.dataDir}
	if s.dir == "" {
		s.dir = filepath.Join(t.TempDir(), "karve")
	}
	// Commits are not synced: they outlive this process, which is enough here.
	s.args = []string{binary, "server", "--config", os.DevNull, "--data-dir", s.dir, "--stop-with-stdin", "--settle-after", "10s",
		"--bind-address", "127.0.0.1", "--insecure-port", "0",
		"--datastore-endpoint", "sqlite://" + (&url.URL{Path: s.dir}).EscapedPath() + "?durability=relaxed"}
	if o.apiOnly {
		s.args = append(s.args, "--no-controllers", "--disable-scheduler", "--disable-admission-plugins", "ServiceAccount")
	}
	s.args = append(s.args, o.args...)
	s.child, err = s.launch("0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.child.Stop(); err != nil {
			t.Errorf("%v; the server's log:\n%s", err, s.child.Log())
		}
	})
	s.Cluster, err = Connect(filepath.Join(s.dir, "admin.kubeconfig"), !o.apiOnly)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Restart stops the cluster and starts it again, with its objects and at the same
// address. Watches end and connections break, as they do for every client.
func (s *Server) Restart(t testing.TB) {
	t.Helper()
	address, err := url.Parse(s.config.Host)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.child.Stop(); err != nil {
		t.Fatalf("%v; the server's log:\n%s", err, s.child.Log())
	}
	child, err := s.launch(address.Port())
	if err != nil {
		t.Fatal(err)
	}
	s.child = child
}

// Log is what the server has logged since it was started or restarted.
func (s *Server) Log() string { return s.child.Log() }

func (o *options) program() (string, error) {
	for _, path := range []string{o.binary, os.Getenv(BinaryVariable)} {
		if path != "" {
			return exec.LookPath(path)
		}
	}
	path, err := exec.LookPath("karve")
	if err != nil {
		err = fmt.Errorf("karve is not in the PATH, and %s is not set: see https://github.com/karve-k8s/karve for how to install it", BinaryVariable)
	}
	return path, err
}

// readyLine begins what karve prints when all is there (main.go, greet).
var readyLine = regexp.MustCompile(`(?m)^karve is ready after .*\n`)

func (s *Server) launch(port string) (*Child, error) {
	return StartChild(exec.Command(s.args[0], append(s.args[1:len(s.args):len(s.args)], "--secure-port", port)...), readyLine)
}
