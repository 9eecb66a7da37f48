package tunnels

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
)

// client is one SSH connection, to a node or to the bastion.
type client struct {
	t       *Tunnels
	name    string // of the node, or "the bastion …"
	address string // host:port of the SSH server
	ssh     *ssh.Client
	wire    *wire
	done    chan struct{} // closed when the connection has ended
	conns   atomic.Int64  // connections through it

	mu    sync.Mutex
	first error // why it ended, if this side knows

	pinging sync.Mutex // one keepalive request at a time
	next    *ping      // guarded by mu: the request that has not begun yet
}

// dialNode makes the SSH connection to a node, through the bastion if there is one.
func (t *Tunnels) dialNode(ctx context.Context, name, address string) (*client, error) {
	dial := t.dialTCP
	if t.config.Jump != nil {
		dial = t.dialJump // it has limits of its own
	}
	return t.handshake(ctx, dial, t.config.User, name, address)
}

// slots limit how many do something at once.
type slots chan struct{}

// take waits for a slot until ctx ends. give returns it.
func (s slots) take(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s slots) give() { <-s }

// handshake makes an SSH connection. The error wraps the reason, and names the address. What waits
// for the network holds no slot.
func (t *Tunnels) handshake(ctx context.Context, dial DialFunc, user, name, address string) (*client, error) {
	known, err := t.config.HostKeys.of(address)
	if err != nil {
		return nil, err
	}
	raw, err := dial(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	if err := t.dialing.take(ctx); err != nil {
		raw.Close()
		return nil, err
	}
	defer t.dialing.give()
	ctx, cancel := context.WithTimeoutCause(ctx, t.config.DialTimeout,
		fmt.Errorf("%w: %s does not answer within %v", ErrUnreachable, address, t.config.DialTimeout))
	defer cancel()
	signer, err := t.config.Signer()
	if err != nil {
		raw.Close()
		return nil, err
	}
	c := &client{t: t, name: name, address: address, wire: &wire{Conn: raw}, done: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	var refused error
	var keyAccepted bool
	conn, channels, requests, err := ssh.NewClientConn(c.wire, address, &ssh.ClientConfig{
		User: user, Auth: []ssh.AuthMethod{ssh.PublicKeys(signer)}, HostKeyAlgorithms: known.algorithms,
		HostKeyCallback: func(_ string, remote net.Addr, key ssh.PublicKey) error {
			refused = known.check(remote, key)
			keyAccepted = refused == nil
			return refused
		},
	})
	if !stop() && err == nil { // the context has ended meanwhile
		conn.Close()
		err = context.Cause(ctx)
	}
	if err == nil {
		c.ssh = ssh.NewClient(conn, channels, requests)
		go func() {
			c.end(fmt.Errorf("%w: %w", ErrEnded, c.wire.explain(c.ssh.Wait())))
			close(c.done)
		}()
		return c, nil
	}
	raw.Close()
	switch lost := c.wire.lost(); {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case refused != nil:
		return nil, refused
	case lost != nil && keyAccepted:
		return nil, fmt.Errorf("%w: %s closed the connection during authentication: %w", ErrUnreachable, address, lost)
	case lost != nil:
		return nil, fmt.Errorf("%w: %s closed the connection before authentication: %w", ErrUnreachable, address, lost)
	case keyAccepted:
		return nil, fmt.Errorf("%w: %s refuses user %s with this server's key: add the line that karve ssh public-key prints to the authorized_keys of that user, and check that this user exists there", ErrAuthentication, address, user)
	}
	return nil, fmt.Errorf("%w: %s: %w", ErrUnreachable, address, err)
}

// dialTCP makes the TCP connection under an SSH connection.
func (t *Tunnels) dialTCP(ctx context.Context, network, address string) (net.Conn, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, t.config.ConnectTimeout,
		fmt.Errorf("%w: %s does not answer within %v", ErrUnreachable, address, t.config.ConnectTimeout))
	defer cancel()
	raw, err := t.config.Dial(ctx, network, address)
	switch {
	case err == nil:
		return raw, nil
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	}
	return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
}

// end closes the connection. The first cause is what open connections report.
func (c *client) end(cause error) {
	c.mu.Lock()
	if c.first == nil {
		c.first = cause
	}
	c.mu.Unlock()
	c.ssh.Close()
}

// cause is why the connection ended. It waits for the end.
func (c *client) cause() error {
	<-c.done
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.first
}

// ended is the error of a connection through c that was open when c ended.
func (c *client) ended() error {
	cause := c.cause()
	if !errors.Is(cause, ErrEnded) {
		cause = fmt.Errorf("%w: %w", ErrEnded, cause)
	}
	return &Error{c.name, cause}
}

// hasEnded is whether cause would not wait.
func (c *client) hasEnded() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// ping is a keepalive request.
type ping struct {
	done chan struct{}
	err  error
}

// alive returns nil if the other end answers, and otherwise why the connection ended. Calls
// that come while a request is on its way share the next one: the reply to one that was sent
// earlier would prove nothing about now.
func (c *client) alive() error {
	c.mu.Lock()
	p := c.next
	if p == nil {
		p = &ping{done: make(chan struct{})}
		c.next = p
		go c.send(p)
	}
	c.mu.Unlock()
	<-p.done
	return p.err
}

func (c *client) send(p *ping) {
	c.pinging.Lock()
	defer c.pinging.Unlock()
	defer close(p.done)
	c.mu.Lock()
	c.next = nil
	c.mu.Unlock()
	if _, _, err := c.ssh.SendRequest("keepalive@openssh.com", true, nil); err != nil {
		p.err = c.ended()
	}
}

// keepAlive ends the connection if the other end does not answer in time.
func (c *client) keepAlive(within time.Duration) error {
	timer := time.AfterFunc(within, func() {
		c.end(fmt.Errorf("%w: %s has not answered for %v", ErrEnded, c.address, within))
	})
	defer timer.Stop()
	return c.alive()
}

// directTCPIP is the request for a connection (RFC 4254, 7.2).
type directTCPIP struct {
	Host       string
	Port       uint32
	OriginHost string
	OriginPort uint32
}

// open makes a connection from the other end to address.
func (c *client) open(ctx context.Context, address string) (net.Conn, error) {
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("%s: not a port: %w", address, err)
	}
	request := ssh.Marshal(&directTCPIP{host, uint32(port), "127.0.0.1", 0})
	type answer struct {
		channel  ssh.Channel
		requests <-chan *ssh.Request
		err      error
	}
	answered := make(chan answer, 1)
	go func() {
		channel, requests, err := c.ssh.OpenChannel("direct-tcpip", request)
		answered <- answer{channel, requests, err}
	}()
	var a answer
	select {
	case a = <-answered:
	case <-ctx.Done():
		go func() {
			if a := <-answered; a.err == nil {
				go ssh.DiscardRequests(a.requests)
				a.channel.Close()
			}
		}()
		return nil, &Error{c.name, fmt.Errorf("%w to %s: %w", ErrDestination, address, context.Cause(ctx))}
	}
	var refused *ssh.OpenChannelError
	switch {
	case a.err == nil:
		go ssh.DiscardRequests(a.requests)
		return newConn(c, a.channel, host, int(port))
	case !errors.As(a.err, &refused):
		select {
		case <-c.done:
			return nil, c.ended()
		case <-ctx.Done():
			return nil, &Error{c.name, fmt.Errorf("%w: %w", ErrEnded, context.Cause(ctx))}
		}
	case refused.Reason == ssh.Prohibited:
		return nil, &Error{c.name, fmt.Errorf("%w by the SSH server at %s: set AllowTcpForwarding yes in its sshd_config, and port-forwarding after restrict in authorized_keys", ErrForwarding, c.address)}
	}
	return nil, &Error{c.name, fmt.Errorf("%w to %s: %s", ErrDestination, address, refused.Message)}
}

// wire is the TCP connection under an SSH connection. It remembers why it failed: the ssh package
// ends the channels before it says so.
type wire struct {
	net.Conn
	failed atomic.Pointer[error]
}

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if err != nil && !errors.Is(err, net.ErrClosed) { // otherwise this side closed it
		w.failed.CompareAndSwap(nil, &err)
	}
	return n, err
}

// lost is why the connection failed; nil if it did not.
func (w *wire) lost() error {
	if err := w.failed.Load(); err != nil {
		if *err == io.EOF {
			return errors.New("the other end closed the connection")
		}
		return *err
	}
	return nil
}

// explain is the reason why the SSH connection ended, if that ended with err.
func (w *wire) explain(err error) error {
	if lost := w.lost(); lost != nil {
		return lost
	}
	if err == nil {
		return net.ErrClosed
	}
	return err
}

// destination is the address of the other end of a connection.
func destination(host string, port int) net.Addr {
	if ip, err := netip.ParseAddr(host); err == nil {
		return net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, uint16(port)))
	}
	return named(net.JoinHostPort(host, strconv.Itoa(port)))
}

// named is an address with a host name.
type named string

func (named) Network() string  { return "tcp" }
func (n named) String() string { return string(n) }

// timedOut reports whether err is that of a deadline.
func timedOut(err error) bool { return errors.Is(err, os.ErrDeadlineExceeded) }
