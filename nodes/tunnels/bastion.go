package tunnels

import (
	"context"
	"fmt"
	"net"
	"os/user"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// Jump names a bastion.
type Jump struct {
	User, Host string
	Port       int
}

func (j Jump) String() string {
	return j.User + "@" + net.JoinHostPort(j.Host, strconv.Itoa(j.Port))
}

// ParseJump parses USER@HOST or USER@HOST:PORT.
func ParseJump(text string) (*Jump, error) {
	want := fmt.Errorf("%q: want USER@HOST or USER@HOST:PORT, such as karve@bastion.example.org:2222", text)
	name, host, ok := strings.Cut(text, "@")
	if !ok || CheckUser(name) != nil {
		return nil, want
	}
	j := &Jump{User: name, Host: strings.Trim(host, "[]"), Port: defaultPort}
	if h, port, err := net.SplitHostPort(host); err == nil {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return nil, want
		}
		j.Host, j.Port = h, int(n)
	}
	if CheckAddress(j.Host) != nil {
		return nil, want
	}
	return j, nil
}

// CheckUser refuses what no user is called.
func CheckUser(name string) error {
	if name == "" || strings.ContainsAny(name, "@:/, \t\n") || strings.HasPrefix(name, "-") {
		return user.UnknownUserError(name)
	}
	return nil
}

// bastion is the one SSH connection to --ssh-jump, which is made when a node needs it.
type bastion struct {
	Jump
	t *Tunnels

	mu     sync.Mutex
	client *client
	making *making // nil unless the connection is being made
}

// making is an attempt to connect to the bastion. All nodes that need it wait for the same one.
type making struct {
	done   chan struct{}
	client *client
	err    error
}

// dial makes a connection from the bastion.
func (b *bastion) dial(ctx context.Context, _, address string) (net.Conn, error) {
	c, err := b.connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("through the bastion %s (--ssh-jump): %w", b.Jump, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, b.t.config.ConnectTimeout, fmt.Errorf("no answer within %v", b.t.config.ConnectTimeout))
	defer cancel()
	conn, err := c.open(ctx, address)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return conn, nil
}

// connect returns the connection to the bastion. The attempt to make it is not the caller's: one
// that no longer waits does not end it.
func (b *bastion) connect(ctx context.Context) (*client, error) {
	b.mu.Lock()
	if b.client != nil {
		select {
		case <-b.client.done:
			b.client = nil
		default:
			defer b.mu.Unlock()
			return b.client, nil
		}
	}
	m := b.making
	if m == nil {
		m = &making{done: make(chan struct{})}
		b.making = m
		b.t.loops.Go(func() { b.make(m) })
	}
	b.mu.Unlock()
	select {
	case <-m.done:
		return m.client, m.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// make connects to the bastion, and keeps the connection until it ends.
func (b *bastion) make(m *making) {
	m.client, m.err = b.t.handshake(b.t.running, b.t.dialTCP, nil, b.User, "the bastion "+b.Jump.String(), net.JoinHostPort(b.Host, strconv.Itoa(b.Port)))
	if m.err == nil {
		m.client.bastion = true
	}
	b.mu.Lock()
	b.client, b.making = m.client, nil
	b.mu.Unlock()
	close(m.done)
	if m.err == nil {
		b.keep(m.client)
	}
}

// keep checks the connection until it ends.
func (b *bastion) keep(c *client) {
	for {
		select {
		case <-c.done:
			return
		case <-b.t.running.Done():
			c.end(errStopped)
			<-c.done
			return
		case <-time.After(wait.Jitter(b.t.config.KeepAlive, 0.2)):
			_ = c.keepAlive(b.t.config.KeepAlive) // it ends the connection
		}
	}
}
