package simulate

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// ErrSimulated is wrapped by the error that a connection to a Pod gets.
var ErrSimulated = errors.New("simulated")

// errStopped is the end of every connection.
var errStopped = fmt.Errorf("%w: the nodes have stopped", ErrSimulated)

// Kubelet answers the API server's requests to simulated nodes: `kubectl logs`, exec and
// everything else that would reach a kubelet. Nothing listens: a connection through Dial to
// the address of a simulated node is a pipe.
//
// The zero value has no nodes, and dials as usual.
type Kubelet struct {
	// Sign signs the nodes' serving certificates. If it is nil, they are self-signed.
	Sign *tls.Certificate

	mu      sync.Mutex
	of      *simulation
	server  *http.Server
	pipes   chan net.Conn
	key     *ecdsa.PrivateKey
	closed  chan struct{}
	streams sync.WaitGroup // requests that have taken over their connection
}

// DialFunc is a net.Dialer's DialContext.
type DialFunc = func(ctx context.Context, network, address string) (net.Conn, error)

// Dial connects to simulated nodes itself, and to the processes that answer for simulated Pods (see
// [Listen]). It passes connections to other addresses to next.
func (k *Kubelet) Dial(next DialFunc) DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		k.mu.Lock()
		s, pipes, closed := k.of, k.pipes, k.closed
		k.mu.Unlock()
		to, err := netip.ParseAddrPort(address)
		if s == nil || err != nil {
			return next(ctx, network, address)
		}
		at := to.Addr().Unmap()
		if pod, ok := s.addresses.owner(at); ok {
			return s.dialPod(ctx, pod, to.Port())
		}
		n := s.nodeAt(at)
		if n == nil {
			return next(ctx, network, address)
		}
		if err := n.answers(); err != nil {
			return nil, err
		}
		config, err := k.tls(at)
		if err != nil {
			return nil, err
		}
		here, there := net.Pipe()
		held, err := s.connections.Hold(n.key(), here, n.answers)
		if err != nil {
			return nil, err
		}
		select {
		case pipes <- tls.Server(&watchedConn{Conn: there, node: n, gone: make(chan struct{})}, config):
			return held, nil
		case <-closed:
			err = errStopped
		case <-ctx.Done():
			err = ctx.Err()
		}
		held.Close()
		return nil, err
	}
}

// nodeAt returns the node with an address, or nil.
func (s *simulation) nodeAt(at netip.Addr) *node {
	for i, six := range s.IPv6 {
		if at.Is6() != six {
			continue
		}
		if n := s.nodes.at(indexAt(at)); n != nil && n.hosts[i].IP == at.String() {
			return n
		}
	}
	return nil
}

// open starts to answer for the nodes of s.
func (k *Kubelet) open(s *simulation) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.of, k.pipes, k.closed = s, make(chan net.Conn), make(chan struct{})
	k.server = &http.Server{Handler: http.HandlerFunc(k.answer), ErrorLog: log.New(io.Discard, "", 0), ReadHeaderTimeout: time.Minute, ConnContext: withConn}
	go k.server.Serve(pipeListener{k.pipes, k.closed})
}

func (k *Kubelet) close() {
	k.mu.Lock()
	close(k.closed)
	k.server.Close()
	k.of.connections.Stop(errStopped)
	k.of = nil
	k.mu.Unlock()
	k.streams.Wait()
}

func (k *Kubelet) simulation() *simulation {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.of
}

// answer handles a request to a node.
func (k *Kubelet) answer(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	of := func(what string) string {
		if len(parts) < 3 {
			return what
		}
		return fmt.Sprintf("%s of Pod %s/%s", what, parts[1], parts[2])
	}
	say := func(status int, text string) {
		respond(w, status, "simulated: "+text+"\n")
	}
	container := "Pod"
	if len(parts) > 3 {
		container = "container " + parts[len(parts)-1] // a Pod's UID may come before it
	}
	switch parts[0] {
	case "healthz":
		io.WriteString(w, "ok")
	case "containerLogs":
		if s := k.simulation(); s != nil && len(parts) > 3 {
			s.logs(w, r, types.NamespacedName{Namespace: parts[1], Name: parts[2]}, parts[3])
			return
		}
		say(http.StatusNotFound, "this node has no /"+strings.Join(parts, "/"))
	case "stats", "metrics":
		s, conn := k.simulation(), connOf(r)
		switch path := strings.Join(parts, "/"); {
		case s != nil && conn != nil && path == "stats/summary":
			s.summary(w, conn.node)
		case s != nil && conn != nil && path == "metrics/resource":
			s.resourceMetrics(w, conn.node)
		default:
			say(http.StatusNotFound, "this node has no /"+path)
		}
	case "exec", "attach", "portForward":
		if len(parts) < 3 || parts[0] != "portForward" && len(parts) < 4 {
			say(http.StatusNotFound, "this node has no /"+strings.Join(parts, "/"))
			return
		}
		t := &taking{pod: types.NamespacedName{Namespace: parts[1], Name: parts[2]}, container: parts[len(parts)-1]}
		if t.reason = of(container) + " runs no program"; parts[0] == "portForward" {
			t.reason = of("the container") + " runs no program"
		}
		k.take(w, r, parts[0], t, say)
	case "run":
		say(http.StatusNotImplemented, of(container)+" runs no program, so there is nothing to run in it")
	default:
		say(http.StatusNotFound, "this node has no /"+strings.Join(parts, "/"))
	}
}

// tls returns the TLS configuration for connections to one node.
func (k *Kubelet) tls(node netip.Addr) (*tls.Config, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.key == nil {
		key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
		if err != nil {
			return nil, err
		}
		k.key = key
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "simulated node"}, IPAddresses: []net.IP{node.AsSlice()},
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	parent, signer := template, any(k.key)
	if k.Sign != nil {
		parent, signer = k.Sign.Leaf, k.Sign.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &k.key.PublicKey, signer)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of a simulated node: %w", err)
	}
	return &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: k.key}}, MinVersion: tls.VersionTLS12}, nil
}

// pipeListener accepts the pipes that Dial made.
type pipeListener struct {
	pipes  chan net.Conn
	closed chan struct{}
}

func (l pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.pipes:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (pipeListener) Close() error { return nil }

func (pipeListener) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
