package server_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/remotecommand"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	remoteclient "k8s.io/client-go/tools/remotecommand"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/insecure"
)

// stopWithStreams is how long a stop with open streams may take on a busy machine. A
// stop that waits for a stream takes a minute.
const stopWithStreams = 15 * time.Second

// fakeKubelet serves one node of the cluster. Its streams begin with a line and never end.
func (c *cluster) fakeKubelet(t *testing.T) (node string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("/containerLogs/", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "begun")
		// The API server forwards a log that is not followed when a buffer is full.
		fmt.Fprintln(w, strings.Repeat("more ", 100_000))
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	mux.HandleFunc("/exec/", func(w http.ResponseWriter, r *http.Request) {
		if _, err := httpstream.Handshake(r, w, []string{remotecommand.StreamProtocolV5Name, remotecommand.StreamProtocolV4Name}); err != nil {
			t.Error(err)
			return
		}
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
			if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeStdout {
				go func() {
					<-replied
					fmt.Fprintln(s, "begun")
				}()
			}
			return nil
		})
		if conn != nil {
			<-conn.CloseChan()
		}
	})
	at, _ := serveTLS(t, "127.0.0.1", nil, nil, mux)
	u, err := url.Parse(at)
	fatal(t, err)
	port, err := strconv.Atoi(u.Port())
	fatal(t, err)
	n := create(t, c.CoreV1().Nodes(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "streams"},
		Status: corev1.NodeStatus{
			Addresses:       []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "127.0.0.1"}},
			DaemonEndpoints: corev1.NodeDaemonEndpoints{KubeletEndpoint: corev1.DaemonEndpoint{Port: int32(port)}},
		},
	})
	return n.Name
}

// begin reads the first line of a stream.
func begin(t *testing.T, what string, stream io.Reader) *bufio.Reader {
	t.Helper()
	r := bufio.NewReader(stream)
	if line, err := r.ReadString('\n'); err != nil || line != "begun\n" {
		t.Fatalf("%s: begins with %q and %v, want a line", what, line, err)
	}
	return r
}

// A stop ends every stream, whatever serves it and whichever client reads it. A client of a
// stream without an end sees a normal end, and a client that misses a part sees an error. No
// handler finds the datastore closed.
func TestStopEndsStreams(t *testing.T) {
	compares(t, deviations.Streams)
	c := start(t, func(config *server.Config) {
		config.DisableControllers = []string{"node-lifecycle-controller"} // because the fake node reports no status
	})
	ns, node := c.namespace(t), c.fakeKubelet(t)
	pod := create(t, c.CoreV1().Pods(ns), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a"},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "a", Image: "a"}}},
	})
	plain, err := kubernetes.NewForConfig(&rest.Config{Host: c.InsecureURL, QPS: -1, Dial: insecure.Dial})
	fatal(t, err)
	ends := map[string]chan error{}
	reads := func(what string, r *bufio.Reader) {
		end := make(chan error, 1)
		ends[what] = end
		go func() {
			_, err := io.Copy(io.Discard, r)
			end <- err
		}()
	}
	for port, client := range map[string]kubernetes.Interface{"secure": c, "insecure": plain} {
		for _, follow := range []bool{true, false} {
			what := fmt.Sprintf("%s port, log, follow=%v", port, follow)
			stream, err := client.CoreV1().Pods(ns).GetLogs(pod.Name, &corev1.PodLogOptions{Follow: follow}).Stream(context.Background())
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			defer stream.Close()
			reads(what, begin(t, what, stream))
		}
		what := port + " port, watch"
		watcher, err := client.CoreV1().ConfigMaps(ns).Watch(context.Background(), metav1.ListOptions{})
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		defer watcher.Stop()
		end := make(chan error, 1)
		ends[what] = end
		go func() {
			var err error
			for event := range watcher.ResultChan() {
				if event.Type == watch.Error {
					err = fmt.Errorf("event: %v", event.Object)
				}
			}
			end <- err
		}()
	}
	c.execs(t, ns, pod.Name, ends)

	before := c.log.String()
	began := time.Now()
	c.down(t)
	if took := time.Since(began); took > stopWithStreams {
		t.Errorf("the stop took %v, want %v at most", took, stopWithStreams)
	}
	for what, end := range ends {
		err := <-end
		finite := strings.Contains(what, "follow=false")
		upgraded := strings.Contains(what, "exec") // they end only with the command
		if (err != nil) != finite && !upgraded {
			t.Errorf("%s: ends with %v, want an error: %v", what, err, finite)
		}
	}
	for line := range strings.Lines(strings.TrimPrefix(c.log.String(), before)) {
		// client-go's cache of transports belongs to the process. It continues to look for the
		// certificates of clusters of earlier tests.
		if !strings.Contains(line, "logger=tls-transport-cache") && !strings.Contains(line, "the stop waits for") { // a slow machine
			t.Errorf("the stop logs %s", line)
		}
	}
}

// execs starts a command in a Pod over each protocol. When a command ends, its channel in ends
// gets the error.
func (c *cluster) execs(t *testing.T, ns, pod string, ends map[string]chan error) {
	t.Helper()
	at := c.CoreV1().RESTClient().Post().Resource("pods").Namespace(ns).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: "a", Command: []string{"a"}, Stdin: true, Stdout: true}, scheme.ParameterCodec).URL()
	bySPDY, err := remoteclient.NewSPDYExecutor(c.admin, http.MethodPost, at)
	fatal(t, err)
	byWebSocket, err := remoteclient.NewWebSocketExecutor(c.admin, http.MethodGet, at.String())
	fatal(t, err)
	for what, executor := range map[string]remoteclient.Executor{"exec by SPDY": bySPDY, "exec by WebSocket": byWebSocket} {
		in, typing := io.Pipe()
		out, printing := io.Pipe()
		t.Cleanup(func() { typing.Close() })
		end := make(chan error, 1)
		ends[what] = end
		go func() {
			err := executor.StreamWithContext(context.Background(), remoteclient.StreamOptions{Stdin: in, Stdout: printing})
			printing.CloseWithError(fmt.Errorf("ended: %w", errors.Join(io.ErrUnexpectedEOF, err)))
			end <- err
		}()
		r := begin(t, what, out)
		go io.Copy(io.Discard, r)
	}
}

// Upstream's signal does not end a watch that is proxied to another API server.
func TestStopEndsAggregatedWatches(t *testing.T) {
	compares(t, deviations.Streams)
	c := start(t, nil)
	ns := c.namespace(t)
	mux := http.NewServeMux()
	mux.Handle("/", extension(t))
	mux.HandleFunc("/apis/fleet.test/v1/ships", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprintln(w, `{"type":"ADDED","object":{"kind":"Ship","apiVersion":"fleet.test/v1","metadata":{"name":"a"}}}`)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	c.aggregate(t, ns, mux)
	ships := schema.GroupVersionResource{Group: "fleet.test", Version: "v1", Resource: "ships"}
	var watcher watch.Interface
	eventually.Nil(t, "ships can be watched", func() (err error) {
		watcher, err = c.dynamic.Resource(ships).Watch(context.Background(), metav1.ListOptions{})
		return err
	})
	if event := <-watcher.ResultChan(); event.Type != watch.Added {
		t.Fatalf("got %v, want a ship", event)
	}
	began := time.Now()
	c.down(t)
	if took := time.Since(began); took > stopWithStreams {
		t.Errorf("the stop took %v, want %v at most", took, stopWithStreams)
	}
	for event := range watcher.ResultChan() {
		t.Errorf("the watch ends with %v, want nothing", event)
	}
}
