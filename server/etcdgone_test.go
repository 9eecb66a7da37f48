package server_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/kine"
	"github.com/karve-k8s/karve/server"
)

// relay forwards TCP connections to a socket. On request, it holds everything back, like a
// network that loses all packets: it neither refuses nor answers.
type relay struct {
	listener net.Listener
	socket   string

	mu   sync.Mutex // held: nothing passes
	work sync.WaitGroup
	all  []net.Conn
}

func newRelay(t *testing.T, socket string) *relay {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	fatal(t, err)
	r := &relay{listener: listener, socket: socket}
	r.work.Go(r.accept)
	return r
}

func (r *relay) accept() {
	for {
		near, err := r.listener.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("unix", r.socket)
		if err != nil {
			near.Close()
			continue
		}
		r.mu.Lock()
		r.all = append(r.all, near, far)
		r.mu.Unlock()
		for from, to := range map[net.Conn]net.Conn{near: far, far: near} {
			r.work.Go(func() {
				io.Copy(passing{to, &r.mu}, from)
				to.Close()
			})
		}
	}
}

// passing writes only while it holds mu.
type passing struct {
	io.Writer
	mu *sync.Mutex
}

func (p passing) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.Writer.Write(b)
}

// end closes all connections. What relay holds back is forwarded or lost.
func (r *relay) end() {
	r.listener.Close()
	for _, conn := range r.all {
		conn.Close()
	}
	r.work.Wait()
}

// watchdog stands in for systemd, and returns the signs of life of the server that is launched next.
func watchdog(t *testing.T) <-chan struct{} {
	name := filepath.Join(t.TempDir(), "notify")
	socket, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	fatal(t, err)
	t.Cleanup(func() { socket.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", "2000000")
	signs := make(chan struct{})
	go func() {
		buffer := make([]byte, 8192)
		for {
			n, err := socket.Read(buffer)
			if err != nil {
				return
			}
			if strings.Contains(string(buffer[:n]), "WATCHDOG=1") {
				select {
				case signs <- struct{}{}:
				default:
				}
			}
		}
	}()
	return signs
}

// If etcd no longer answers, the server goes on, also for systemd. A stop still ends in time, and its error says why it was not
// clean.
func TestStopWithEtcdGone(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	engine, err := datastore.OpenEngine(nil, datastore.Options{Durability: datastore.Memory})
	fatal(t, err)
	defer engine.Close()
	etcd, err := kine.Serve(t.Context(), engine, t.TempDir())
	fatal(t, err)
	defer etcd.Close()
	way := newRelay(t, strings.TrimPrefix(etcd.Endpoint(), "unix://"))
	defer way.end()

	const limit = 2 * time.Second
	signs := watchdog(t)
	c := up(t, t.TempDir(), func(config *server.Config) {
		config.DatastoreEndpoint = "http://" + way.listener.Addr().String()
		config.NoControllers, config.DisableScheduler = true, true
		config.StopTimeout = limit
	})
	way.mu.Lock()
	eventually.Nil(t, "/livez fails", func() error {
		if text, err := c.RESTClient().Get().AbsPath("/livez").DoRaw(t.Context()); err == nil || !strings.Contains(string(text), "[-]etcd") {
			return fmt.Errorf("%v: %s", err, text)
		}
		return nil
	})
	for range 2 { // the first one may have been under way
		eventually.Receive(t, "a sign of life", signs)
	}
	began := time.Now()
	c.cancel()
	select {
	case <-c.done:
	case <-time.After(stopLimit):
		t.Error("still running")
	}
	took := time.Since(began)
	way.mu.Unlock()
	<-c.done
	if took > limit+10*time.Second {
		t.Errorf("the stop took %v, its limit is %v", took, limit)
	}
	for _, want := range []string{"stop API server: ", "still terminating 2s after it was told to stop", "is the datastore unreachable?"} {
		if c.err == nil || !strings.Contains(c.err.Error(), want) {
			t.Errorf("got %v, want an error with %q", c.err, want)
		}
	}
	t.Logf("after %v: %v", took.Round(time.Millisecond), c.err)
	// When etcd is back, what upstream was still doing ends.
	eventually.Nil(t, "nothing of the server is left", func() error {
		for _, stack := range karveGoroutines() {
			if strings.Contains(stack, "/karve/server") {
				return errors.New(stack)
			}
		}
		return openFiles(c.dir)
	})
}
