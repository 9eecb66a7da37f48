package server_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/insecure"
	"github.com/karve-k8s/karve/servertest/process/child"
)

// The tests of this package run the server in this process, which has one set of upstream's
// globals. So control planes run one after another, and a run of all tests divides them over several
// processes.
//
// A test that needs its own configuration calls start and is sequential. All other tests call
// shared, which makes them parallel: the testing package runs them after the sequential ones,
// and they share one control plane. With -short, only these run. They cover each subject for
// the cost of one start.

const (
	startLimit = 2 * time.Minute // of a start on a busy machine
	stopLimit  = time.Minute     // of a stop
	patience   = eventually.Limit
)

// cluster is a running control plane and its administrator's clients.
type cluster struct {
	server.Info
	*kubernetes.Clientset
	dynamic dynamic.Interface
	admin   *rest.Config
	dir     string
	log     *child.Text

	cancel context.CancelFunc
	done   chan struct{}
	err    error // of Run; valid once done is closed
}

// upstreamVariable names the deviations that are off in all control planes of these tests,
// like --upstream. .ci/run sets it to "all" for some tests.
const upstreamVariable = "KARVE_TEST_UPSTREAM"

// compares skips a test of what a deviation does if the deviation is off.
func compares(t *testing.T, d *deviations.Deviation) {
	t.Helper()
	switches, err := deviations.Parse(strings.FieldsFunc(os.Getenv(upstreamVariable), func(r rune) bool { return r == ',' }))
	fatal(t, err)
	if !switches.On(d) {
		t.Skipf("%s is off: %s", d.Name, upstreamVariable)
	}
}

// boot runs a control plane, and returns at once. Unless configure changes it, the configuration has
// a new data directory, ports that the kernel chooses, and a log of warnings and errors.
func boot(dir string, configure func(*server.Config)) (c *cluster, ready <-chan server.Info) {
	c = &cluster{dir: dir, log: &child.Text{}, done: make(chan struct{})}
	told := make(chan server.Info, 1)
	config := server.Config{
		DataDir: dir,
		Log:     &logrus.Logger{Out: c.log, Formatter: &logrus.TextFormatter{DisableColors: true}, Level: logrus.InfoLevel, Hooks: logrus.LevelHooks{}},
		Ready:   func(i server.Info) { told <- i },
	}
	if names := os.Getenv(upstreamVariable); names != "" {
		config.Upstream = strings.Split(names, ",")
	}
	if configure != nil {
		configure(&config)
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	go func() {
		defer close(c.done)
		c.err = server.Run(ctx, config)
	}()
	return c, told
}

// connect makes the administrator's clients.
func (c *cluster) connect(kubeconfig string) (err error) {
	if c.admin, err = clientcmd.BuildConfigFromFlags("", kubeconfig); err != nil {
		return err
	}
	c.admin.QPS = -1
	c.admin.WarningHandler = rest.NoWarnings{}
	if c.Clientset, err = kubernetes.NewForConfig(c.admin); err != nil {
		return err
	}
	c.dynamic, err = dynamic.NewForConfig(c.admin)
	return err
}

// launch runs a control plane until it is ready.
func launch(dir string, configure func(*server.Config)) (*cluster, error) {
	c, ready := boot(dir, configure)
	select {
	case c.Info = <-ready:
	case <-c.done:
		return c, fmt.Errorf("did not start: %w", c.err)
	case <-time.After(startLimit):
		c.cancel()
		return c, fmt.Errorf("not ready after %v; log:\n%s", startLimit, c.log)
	}
	return c, c.connect(c.Kubeconfig)
}

// stop ends the control plane and returns an error if anything went wrong while it ran or
// stopped.
func (c *cluster) stop() error {
	c.cancel()
	select {
	case <-c.done:
	case <-time.After(stopLimit):
		return fmt.Errorf("still running %v after its context ended; Karve's goroutines:\n%s", stopLimit, strings.Join(karveGoroutines(), "\n\n"))
	}
	if c.err != nil {
		return fmt.Errorf("Run: got %w, want nil after a clean stop", c.err)
	}
	return leaks(c.dir)
}

// start runs a control plane for this test only, and stops it at the test's end.
func start(t *testing.T, configure func(*server.Config)) *cluster {
	t.Helper()
	c := up(t, t.TempDir(), configure)
	t.Cleanup(func() { c.down(t) })
	return c
}

// up runs a control plane on a directory. The test's end does not wait for a clean stop.
func up(t *testing.T, dir string, configure func(*server.Config)) *cluster {
	t.Helper()
	if testing.Short() {
		t.Skip("starts a control plane of its own")
	}
	c, err := launch(dir, configure)
	t.Cleanup(func() { c.cancel(); <-c.done })
	if err != nil {
		t.Fatalf("%v; log:\n%s", err, c.log)
	}
	return c
}

// down stops a control plane, cleanly.
func (c *cluster) down(t *testing.T) {
	t.Helper()
	if err := c.stop(); err != nil {
		t.Errorf("%v; log:\n%s", err, c.log)
	}
}

// once runs a control plane for as long as do takes, and returns what it has logged.
func once(t *testing.T, dir string, configure func(*server.Config), do func(c *cluster)) string {
	t.Helper()
	c := up(t, dir, configure)
	do(c)
	c.down(t)
	return c.log.String()
}

// copyKeys copies the keys of a cluster, which may run, for another one, to which they are new.
func copyKeys(t *testing.T, to, from string) {
	t.Helper()
	entries, err := os.ReadDir(from)
	fatal(t, errors.Join(err, os.MkdirAll(to, 0o700)))
	for _, e := range entries {
		if e.Name() == "served" || strings.HasPrefix(e.Name(), ".") { // a file that is being written
			continue
		}
		content, err := os.ReadFile(filepath.Join(from, e.Name()))
		fatal(t, errors.Join(err, os.WriteFile(filepath.Join(to, e.Name()), content, 0o600)))
	}
}

func fatal(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

var sharedCluster struct {
	sync.Once
	*cluster
	err error
}

// shared makes the test parallel and returns the control plane that all parallel tests share.
// A test must use its own namespaces and cluster-wide names.
func shared(t *testing.T) *cluster {
	t.Helper()
	t.Parallel()
	sharedCluster.Do(func() {
		var dir string
		if dir, sharedCluster.err = os.MkdirTemp("", "karve-shared-"); sharedCluster.err == nil {
			sharedCluster.cluster, sharedCluster.err = launch(dir, nil)
		}
	})
	if sharedCluster.err != nil {
		t.Fatal("the shared control plane: ", sharedCluster.err)
	}
	return sharedCluster.cluster
}

// TestMain runs the tests. If those are all, most of their time is spent on waiting, so it runs them
// in several processes at once.
func TestMain(m *testing.M) {
	flag.Parse()
	// The API server reaches other addresses of this machine through a proxy, if there is one.
	for _, name := range []string{"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"} {
		os.Unsetenv(name)
	}
	all := !testing.Short() && testing.CoverMode() == ""
	for _, only := range []string{"test.run", "test.bench", "test.fuzz", "test.list", "test.cpuprofile", "test.memprofile", "test.trace"} {
		all = all && flag.Lookup(only).Value.String() == ""
	}
	if all {
		os.Exit(divide(2 * runtime.NumCPU()))
	}
	code := m.Run()
	if c := sharedCluster.cluster; c != nil {
		err := errors.Join(c.stop(), os.RemoveAll(c.dir))
		if err != nil {
			fmt.Fprintf(os.Stderr, "FAIL: the shared control plane: %v; log:\n%s\n", err, c.log)
			code = 1
		}
	}
	os.Exit(code)
}

// divide runs the tests in processes with a few tests each, of which n run at once. It returns the
// exit code.
func divide(n int) (code int) {
	list, err := exec.Command(os.Args[0], "-test.list=.").Output()
	if err != nil {
		panic(err)
	}
	options := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(o string) bool {
		return strings.HasPrefix(o, "-test.testlogfile=") // they would write to the same file
	})
	var ended sync.WaitGroup
	var mu sync.Mutex
	places := make(chan struct{}, n)
	for names := range slices.Chunk(strings.Fields(string(list)), 6) {
		ended.Go(func() {
			places <- struct{}{}
			defer func() { <-places }()
			run := "-test.run=^(" + strings.Join(names, "|") + ")$"
			said, err := exec.Command(os.Args[0], append(slices.Clone(options), run, "-test.parallel=20")...).CombinedOutput()
			mu.Lock()
			defer mu.Unlock()
			os.Stdout.Write(said)
			if err != nil {
				fmt.Println("FAIL:", err)
				code = 1
			}
		})
	}
	ended.Wait()
	return code
}

var namespaces atomic.Int64

// namespace creates a namespace for the test, with its default service account.
func (c *cluster) namespace(t *testing.T) string {
	t.Helper()
	name := fmt.Sprintf("test-%d", namespaces.Add(1))
	create(t, c.CoreV1().Namespaces(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	eventually.Nil(t, "the default service account of "+name, func() error {
		_, err := c.CoreV1().ServiceAccounts(name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
	return name
}

// creator is the part of every typed client that create uses.
type creator[T any] interface {
	Create(context.Context, T, metav1.CreateOptions) (T, error)
}

func create[T any](t *testing.T, client creator[T], object T) T {
	t.Helper()
	made, err := client.Create(t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create %T: %v", object, err)
	}
	return made
}

// getter is the part of every typed client that gone uses.
type getter[T any] interface {
	Get(context.Context, string, metav1.GetOptions) (T, error)
}

// gone waits until the API has no object of that name.
func gone[T any](t *testing.T, client getter[T], name string) {
	t.Helper()
	eventually.Nil(t, name+" is gone", func() error {
		_, err := client.Get(t.Context(), name, metav1.GetOptions{})
		return wantNotFound(err)
	})
}

// patcher is the part of every typed client that amend uses.
type patcher[T any] interface {
	Patch(context.Context, string, types.PatchType, []byte, metav1.PatchOptions, ...string) (T, error)
}

func amend[T any](t *testing.T, client patcher[T], name string, kind types.PatchType, patch string, subresources ...string) {
	t.Helper()
	if _, err := client.Patch(t.Context(), name, kind, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
		t.Fatalf("patch %s: %v", name, err)
	}
}

// plainClient returns a client for the insecure port of a server in this process.
func plainClient(t *testing.T) *http.Client {
	t.Helper()
	transport := &http.Transport{DialContext: insecure.Dial}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}
}

// get requests url and returns the status and body of the response.
func get(t *testing.T, client *http.Client, url string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	fatal(t, err)
	answer, err := client.Do(r)
	if err != nil {
		t.Fatalf("GET %s: %v", url, err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatalf("GET %s: %v", url, err)
	}
	return answer.StatusCode, string(body)
}

// httpClient returns a client with the identity and the trust of config.
func httpClient(t *testing.T, config *rest.Config) *http.Client {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	fatal(t, err)
	return client
}

// contains returns nil for a 200 OK response whose body contains every one of want.
func contains(status int, body string, want ...string) error {
	if status != http.StatusOK {
		return fmt.Errorf("got status %d, want 200: %.300s", status, body)
	}
	for _, w := range want {
		if !strings.Contains(body, w) {
			return fmt.Errorf("got %d bytes without %q: %.300s", len(body), w, body)
		}
	}
	return nil
}

// asServiceAccount returns a client configuration with a token of the namespace's default
// service account.
func (c *cluster) asServiceAccount(t *testing.T, ns string) *rest.Config {
	t.Helper()
	token, err := c.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	fatal(t, err)
	config := rest.AnonymousClientConfig(c.admin)
	config.BearerToken = token.Status.Token
	return config
}
