package tunnels

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/eventually"
)

// world is a network of machines with SSH servers, all in this process. Addresses are names for
// listeners on loopback.
type world struct {
	t       *testing.T
	mu      sync.Mutex
	servers map[string]*machine // by host:port of the SSH server
	places  map[string]string   // listeners, by the host:port that the machines connect to
	frozen  chan struct{}       // closed: nothing arrives any more
}

func newWorld(t *testing.T) *world {
	before := runtime.NumGoroutine()
	w := &world{t: t, servers: map[string]*machine{}, places: map[string]string{}, frozen: make(chan struct{})}
	t.Cleanup(func() {
		eventually.Nil(t, "the goroutines of the test have ended", func() error {
			if n := runtime.NumGoroutine(); n > before {
				buf := make([]byte, 1<<20)
				return fmt.Errorf("%d goroutines, %d before:\n%s", n, before, buf[:runtime.Stack(buf, true)])
			}
			return nil
		})
	})
	return w
}

// dial is the server's network.
func (w *world) dial(ctx context.Context, _, address string) (net.Conn, error) {
	w.mu.Lock()
	m, frozen := w.servers[address], w.frozen
	w.mu.Unlock()
	if m == nil {
		return nil, fmt.Errorf("dial tcp %s: no route to host", address)
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", m.listener.Addr().String())
	if err != nil {
		return nil, err
	}
	return &freezing{Conn: conn, frozen: frozen, closed: make(chan struct{})}, nil
}

// blackHole is the network with hosts that do not answer.
func (w *world) blackHole(hosts ...string) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		if host, _, _ := net.SplitHostPort(address); slices.Contains(hosts, host) {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return w.dial(ctx, network, address)
	}
}

// vanish makes the connections that are open silent.
func (w *world) vanish() {
	w.mu.Lock()
	defer w.mu.Unlock()
	close(w.frozen)
	w.frozen = make(chan struct{}) // for later connections
}

// freezing is a connection whose other end seems to vanish.
type freezing struct {
	net.Conn
	frozen, closed chan struct{}
	once           sync.Once
}

func (f *freezing) Read(p []byte) (int, error) {
	n, err := f.Conn.Read(p)
	select {
	case <-f.frozen:
		<-f.closed
		return 0, net.ErrClosed
	default:
		return n, err
	}
}

func (f *freezing) Close() error {
	f.once.Do(func() { close(f.closed) })
	return f.Conn.Close()
}

// place makes a listener known to all machines under an address.
func (w *world) place(address string, l net.Listener) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.places[address] = l.Addr().String()
}

// machine is a machine with an SSH server.
type machine struct {
	w        *world
	listener net.Listener
	serving  sync.WaitGroup

	mu         sync.Mutex
	hostKeys   []ssh.Signer
	authorized ssh.PublicKey
	forbidden  bool // forwarding is
	deaf       bool // no answer to a request to forward
	open       map[net.Conn]bool
	forwarded  map[string]int

	accepted atomic.Int64
}

func key(t testing.TB) ssh.Signer {
	t.Helper()
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return signer
}

// machine starts an SSH server at host:22.
func (w *world) machine(host string, authorized ssh.PublicKey) *machine {
	w.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	m := &machine{w: w, listener: l, hostKeys: []ssh.Signer{key(w.t)}, authorized: authorized, open: map[net.Conn]bool{}, forwarded: map[string]int{}}
	w.mu.Lock()
	w.servers[net.JoinHostPort(host, "22")] = m
	w.mu.Unlock()
	m.serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			m.accepted.Add(1)
			m.mu.Lock()
			m.open[conn] = true
			m.mu.Unlock()
			m.serving.Go(func() { m.serve(conn) })
		}
	})
	w.t.Cleanup(func() {
		l.Close()
		m.kill()
		m.serving.Wait()
	})
	return m
}

// kill ends all SSH connections.
func (m *machine) kill() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for conn := range m.open {
		conn.Close()
	}
}

func (m *machine) serve(conn net.Conn) {
	defer func() {
		conn.Close()
		m.mu.Lock()
		delete(m.open, conn)
		m.mu.Unlock()
	}()
	m.mu.Lock()
	authorized := m.authorized
	config := &ssh.ServerConfig{PublicKeyCallback: func(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if string(key.Marshal()) != string(authorized.Marshal()) {
			return nil, errors.New("not authorized")
		}
		return nil, nil
	}}
	for _, k := range m.hostKeys {
		config.AddHostKey(k)
	}
	m.mu.Unlock()
	server, channels, requests, err := ssh.NewServerConn(conn, config)
	if err != nil {
		return
	}
	defer server.Close()
	go ssh.DiscardRequests(requests)
	var forwarding sync.WaitGroup
	defer forwarding.Wait()
	defer server.Close()
	for offered := range channels {
		forwarding.Go(func() { m.forward(offered) })
	}
}

// forward answers direct-tcpip as sshd does.
func (m *machine) forward(offered ssh.NewChannel) {
	var want directTCPIP
	if err := ssh.Unmarshal(offered.ExtraData(), &want); err != nil || offered.ChannelType() != "direct-tcpip" {
		_ = offered.Reject(ssh.UnknownChannelType, "unknown channel type")
		return
	}
	address := net.JoinHostPort(want.Host, fmt.Sprint(want.Port))
	m.mu.Lock()
	forbidden, deaf := m.forbidden, m.deaf
	m.forwarded[address]++
	m.mu.Unlock()
	if deaf {
		return
	}
	if forbidden {
		_ = offered.Reject(ssh.Prohibited, "open failed")
		return
	}
	m.w.mu.Lock()
	place := m.w.places[address]
	m.w.mu.Unlock()
	target, err := net.Dial("tcp", place)
	if place == "" || err != nil {
		_ = offered.Reject(ssh.ConnectionFailed, "Connection refused")
		return
	}
	defer target.Close()
	channel, requests, err := offered.Accept()
	if err != nil {
		return
	}
	go ssh.DiscardRequests(requests)
	var both sync.WaitGroup
	both.Go(func() {
		_, _ = io.Copy(channel, target)
		_ = channel.CloseWrite()
		channel.Close()
	})
	both.Go(func() {
		_, _ = io.Copy(target, channel)
		target.Close()
	})
	both.Wait()
}

// kubelet answers /healthz at host:10250 with the status that it returns.
func (w *world) kubelet(host string) *atomic.Int64 {
	var status atomic.Int64
	status.Store(http.StatusOK)
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		out.WriteHeader(int(status.Load()))
	}))
	s.Config.ErrorLog = nil
	s.StartTLS()
	w.t.Cleanup(s.Close)
	w.place(net.JoinHostPort(host, "10250"), s.Listener)
	return &status
}

// echo sends back what it gets, at address.
func (w *world) echo(address string) {
	w.listen(address, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
}

func (w *world) listen(address string, do func(net.Conn)) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		w.t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			serving.Go(func() {
				defer conn.Close()
				do(conn)
			})
		}
	})
	w.t.Cleanup(func() {
		l.Close()
		serving.Wait()
	})
	w.place(address, l)
}

// config is quick where a test waits for it.
func (w *world) config(signer ssh.Signer) Config {
	return Config{
		User: "karve", Dial: w.dial, HostKeys: &HostKeys{Path: filepath.Join(w.t.TempDir(), "known_hosts")},
		Signer: func() (ssh.Signer, error) { return signer, nil },
		Retry:  wait.Backoff{Duration: 20 * time.Millisecond, Factor: 1.5, Jitter: 0.5, Steps: 4, Cap: 200 * time.Millisecond},
	}
}

func (w *world) tunnels(c Config, nodes ...Node) *Tunnels {
	t := New(c)
	w.t.Cleanup(t.Close)
	for _, n := range nodes {
		t.Set(n)
	}
	t.Listed()
	return t
}

func node(i int) Node {
	return Node{
		Name: fmt.Sprintf("n%d", i), Addresses: []string{fmt.Sprintf("10.0.0.%d", i)}, KubeletPort: 10250,
		PodCIDRs: []netip.Prefix{netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i))},
	}
}

// connect opens a connection through the tunnels, which the test closes.
func connect(t *testing.T, through *Tunnels, address string) (net.Conn, error) {
	t.Helper()
	conn, err := through.Dial(nil)(t.Context(), "tcp", address)
	if err == nil {
		t.Cleanup(func() { conn.Close() })
	}
	return conn, err
}

// says writes text and expects it back.
func says(conn net.Conn, text string) error {
	if _, err := io.WriteString(conn, text); err != nil {
		return err
	}
	buf := make([]byte, len(text))
	if _, err := io.ReadFull(conn, buf); err != nil {
		return err
	}
	if string(buf) != text {
		return fmt.Errorf("got %q, want %q", buf, text)
	}
	return nil
}

// await waits until the tunnel to a node has a state.
func await(t *testing.T, tunnels *Tunnels, node string, want state) control.Tunnel {
	t.Helper()
	var last control.Tunnel
	eventually.Nil(t, fmt.Sprintf("the tunnel to %s is %s", node, want), func() error {
		for _, s := range tunnels.Status() {
			if last = s; s.Node == node {
				break
			}
		}
		if last.Node != node || last.State != string(want) {
			return fmt.Errorf("it is %+v", last)
		}
		return nil
	})
	return last
}

// wants checks that an error is one of the causes, and names things.
func wants(t *testing.T, err, cause error, texts ...string) {
	t.Helper()
	if !errors.Is(err, cause) {
		t.Fatalf("error %v, want one of %v", err, cause)
	}
	for _, text := range texts {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("error %q does not say %q", err, text)
		}
	}
}
