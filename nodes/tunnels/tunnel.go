package tunnels

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/karve-k8s/karve/control"
)

// state is the state of a tunnel, in the words that users read.
type state string

const (
	stateConnecting state = "connecting"
	stateConnected  state = "connected" // the kubelet has not answered yet
	stateHealthy    state = "healthy"
	stateUnhealthy  state = "unhealthy" // connected, but the kubelet does not answer
	stateFailed     state = "failed"    // waits for the next attempt
)

// tunnel is the tunnel to one node. Tunnels.mu guards its fields.
type tunnel struct {
	t      *Tunnels
	name   string // of the node
	node   Node
	ctx    context.Context
	cancel context.CancelCauseFunc
	retry  chan struct{} // has a token if the next attempt is to be made at once

	refused  string // which addresses of the node are not used
	reached  string // the address at which its SSH server was reached last
	tried    bool   // an attempt to connect was made
	known    bool   // it was connected since the last change of its addresses
	backoff  wait.Backoff
	state    state
	client   *client   // nil unless it is connected
	cause    error     // why it is failed or unhealthy
	since    time.Time // of the state
	next     time.Time // of the next attempt, if failed
	reported string    // the cause that the log has last
}

func newTunnel(t *Tunnels, n Node) *tunnel {
	one := &tunnel{t: t, name: n.Name, node: n, state: stateConnecting, since: time.Now(), retry: make(chan struct{}, 1), backoff: t.config.Retry}
	one.ctx, one.cancel = context.WithCancelCause(t.running)
	return one
}

func (n *tunnel) stop(cause error) { n.cancel(cause) }

// inherit takes over what is known of a node whose addresses have changed. Tunnels.mu is held.
func (n *tunnel) inherit(old *tunnel) {
	if slices.Contains(n.node.Addresses, old.reached) {
		n.reached = old.reached
	}
	if old.tried && !old.known {
		n.backoff, n.cause, n.tried = old.backoff, old.cause, true
		n.state = stateFailed // run waits
	}
}

// tryNow ends the wait for the next attempt.
func (n *tunnel) tryNow() {
	select {
	case n.retry <- struct{}{}:
	default:
	}
}

// has reports whether host is an address of the node.
func (n *tunnel) has(host string, ip netip.Addr) bool {
	return slices.ContainsFunc(n.node.Addresses, func(a string) bool { return same(a, host, ip) })
}

// same reports whether a is host, which has the address ip if that is valid.
func same(a, host string, ip netip.Addr) bool {
	if strings.EqualFold(a, host) {
		return true
	}
	own, err := netip.ParseAddr(a)
	return err == nil && ip.IsValid() && own.Unmap() == ip
}

// routes reports whether ip is one of the addresses for Pods of the node.
func (n *tunnel) routes(ip netip.Addr) bool {
	return slices.ContainsFunc(n.node.PodCIDRs, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// pending reports whether the tunnel may soon be healthy.
func (n *tunnel) pending() bool { return n.state == stateConnecting || n.state == stateConnected }

// failure is the error of a connection that needs the tunnel while it has no client, or is not healthy.
func (n *tunnel) failure() error {
	cause := n.cause
	switch {
	case cause == nil:
		cause = errors.New("it is being made")
	case n.state == stateFailed && !n.next.IsZero():
		cause = fmt.Errorf("%w (the next attempt is in %v)", cause, max(time.Until(n.next), 0).Round(time.Second))
	}
	return &Error{n.name, cause}
}

func (n *tunnel) status() control.Tunnel {
	s := control.Tunnel{Node: n.name, State: string(n.state), Since: n.since.UTC().Truncate(time.Second)}
	if n.client != nil {
		s.Address, s.Connections = n.client.address, int(n.client.conns.Load())
	}
	if n.cause != nil && n.state != stateHealthy {
		s.Problem = n.cause.Error()
	}
	if n.refused != "" {
		s.Problem = strings.TrimPrefix(s.Problem+"; "+n.refused, "; ")
	}
	return s
}

// change sets the state. cause is nil unless the state is failed or unhealthy.
func (n *tunnel) change(to state, c *client, cause error, next time.Time) {
	t := n.t
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.state != to {
		n.since = time.Now()
	}
	n.state, n.client, n.next = to, c, next
	if c != nil {
		n.known = true
		n.reached, _, _ = net.SplitHostPort(c.address)
	}
	if cause != nil || to == stateHealthy {
		n.cause = cause // while it connects again, the last cause is of use
	}
	name := n.name
	if t.nodes[name] == n { // otherwise it is a removed node's, or a new tunnel has its place
		healthyMetric.WithLabelValues(name).Set(map[bool]float64{true: 1}[to == stateHealthy])
	}
	t.announce()

	where := name
	if c != nil {
		where += " (" + c.address + ")"
	}
	switch {
	case to == stateHealthy:
		t.config.Log.Infof("SSH tunnel to %s: healthy", where)
		n.reported = ""
	case cause != nil && withoutSource(cause) != n.reported && n.ctx.Err() == nil:
		t.config.Log.Warnf("SSH tunnel to %s: %v", where, cause)
		n.reported = withoutSource(cause)
	}
}

// run keeps the tunnel until it is stopped.
func (n *tunnel) run() {
	defer func() {
		n.change(stateFailed, nil, context.Cause(n.ctx), time.Time{})
		n.t.mu.Lock()
		defer n.t.mu.Unlock()
		if n.t.nodes[n.name] == nil {
			forgetMetrics(n.name)
		}
	}()
	n.t.mu.Lock()
	hold, cause := n.state == stateFailed, n.cause
	n.t.mu.Unlock()
	if hold {
		n.await(cause)
	}
	for n.ctx.Err() == nil {
		select {
		case <-n.retry: // from before this attempt
		default:
		}
		n.change(stateConnecting, nil, nil, time.Time{})
		c, err := n.connect()
		if err == nil {
			if n.keep(c) {
				n.resetBackoff() // it has been healthy
			}
			err = c.cause()
		}
		if n.ctx.Err() != nil {
			return
		}
		failuresMetric.WithLabelValues(n.name, reasonOf(err)).Inc()
		n.await(err)
	}
}

// await waits before the next attempt.
func (n *tunnel) await(cause error) {
	n.t.mu.Lock()
	pause := n.backoff.Step()
	n.t.mu.Unlock()
	n.change(stateFailed, nil, cause, time.Now().Add(pause))
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-n.retry:
		n.resetBackoff()
	case <-n.ctx.Done():
	}
}

func (n *tunnel) resetBackoff() {
	n.t.mu.Lock()
	defer n.t.mu.Unlock()
	n.backoff = n.t.config.Retry
}

// connect makes an SSH connection to the first address of the node that has an SSH server.
func (n *tunnel) connect() (*client, error) {
	n.t.mu.Lock()
	addresses := n.node.Addresses
	n.tried = n.tried || len(addresses) > 0
	n.t.mu.Unlock()
	if len(addresses) == 0 {
		return nil, fmt.Errorf("%w: the Node has no address in status.addresses", ErrUnreachable)
	}
	var failed error
	for _, a := range addresses {
		dialsMetric.WithLabelValues(n.name).Inc()
		c, err := n.t.dialNode(n.ctx, n.name, net.JoinHostPort(a, strconv.Itoa(n.t.config.Port)))
		if err == nil {
			return c, nil
		}
		if !errors.Is(err, ErrUnreachable) { // this is the node, and it refuses
			return nil, err
		}
		failed = bothFailed(failed, err)
	}
	return nil, failed
}

// bothFailed is the error of two addresses of a node; first may be nil. A name that this machine cannot resolve says
// nothing about a node that has another address.
func bothFailed(first, second error) error {
	var name *net.DNSError
	switch {
	case first == nil || errors.As(first, &name):
		return second
	case errors.As(second, &name):
		return first
	}
	return fmt.Errorf("%w; %w", first, second)
}

// keep checks the connection and the kubelet until the connection or the tunnel ends. It
// reports whether the tunnel has been healthy.
func (n *tunnel) keep(c *client) (healthy bool) {
	stop := context.AfterFunc(n.ctx, func() { c.end(context.Cause(n.ctx)) })
	defer stop()
	n.change(stateConnected, c, nil, time.Time{})
	config := n.t.config
	var nextHealth time.Time
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.done:
			return healthy
		case <-timer.C:
		}
		if !time.Now().Before(nextHealth) {
			err := n.checkHealth(c)
			if c.keepAlive(config.KeepAlive) != nil {
				continue // it has ended
			}
			pause := config.Health
			if err == nil {
				healthy = true
			} else {
				pause /= 12
			}
			n.judge(c, err)
			nextHealth = time.Now().Add(wait.Jitter(pause, 0.2))
		} else if c.keepAlive(config.KeepAlive) != nil {
			continue
		}
		timer.Reset(min(wait.Jitter(config.KeepAlive, 0.2), max(time.Until(nextHealth), 0)))
	}
}

// judge sets the state to what a health check has found.
func (n *tunnel) judge(c *client, err error) {
	to := stateHealthy
	if err != nil {
		to = stateUnhealthy
	}
	n.t.mu.Lock()
	same := n.state == to && (err == nil || n.cause != nil && withoutSource(n.cause) == withoutSource(err))
	n.t.mu.Unlock()
	if !same {
		n.change(to, c, err, time.Time{})
	}
}

// checkHealth requests the kubelet's /healthz through the tunnel, at the address that the API server
// uses, and then at the node's others. The first error is the one that counts.
func (n *tunnel) checkHealth(c *client) error {
	n.t.mu.Lock()
	node := n.node
	n.t.mu.Unlock()
	ctx, cancel := context.WithTimeout(n.ctx, n.t.config.DialTimeout)
	defer cancel()
	var first error
	for _, a := range node.Addresses {
		share, cancel := context.WithTimeout(ctx, n.t.config.DialTimeout/time.Duration(len(node.Addresses)))
		err := n.healthAt(share, c, net.JoinHostPort(a, strconv.Itoa(cmp.Or(node.KubeletPort, 10250))))
		cancel()
		if !errors.Is(err, errNoAnswer) { // this is the kubelet
			return err
		}
		if first == nil {
			first = err
		}
		if c.hasEnded() {
			break
		}
	}
	return first
}

var (
	errNoAnswer      = errors.New("the kubelet does not answer")
	errNoCertificate = errors.New("the kubelet has no serving certificate yet: approve its request (kubectl get csr, then kubectl certificate approve NAME)")
)

// healthAt requests /healthz of the kubelet at an address. Any answer of a kubelet that does not say
// that it is unhealthy is good: what the server may request is not the tunnel's concern.
func (n *tunnel) healthAt(ctx context.Context, c *client, address string) error {
	config := &tls.Config{}
	if n.t.config.Kubelet != nil {
		config = n.t.config.Kubelet()
	}
	config.InsecureSkipVerify = true // the answer decides nothing else
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, address string) (net.Conn, error) { return c.open(ctx, address) },
		TLSClientConfig:   config,
		DisableKeepAlives: true,
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+address+"/healthz", nil)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil && strings.Contains(err.Error(), "remote error: tls: internal error") { // the kubelet's word for it
		return errNoCertificate
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNoAnswer, withoutNode(err))
	}
	defer answer.Body.Close()
	if answer.StatusCode >= http.StatusInternalServerError {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 200))
		return fmt.Errorf("the kubelet is not healthy: %s: %s", answer.Status, text)
	}
	return nil
}

// sourcePort is how package net names the two ends of a connection. Each attempt has another port.
var sourcePort = regexp.MustCompile(`\S+:\d+->`)

// withoutSource is the text of an error, for a comparison with another one.
func withoutSource(err error) string { return sourcePort.ReplaceAllString(err.Error(), "") }

// withoutNode is the cause of an [Error], for a message that names the node already.
func withoutNode(err error) error {
	var of *Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}
