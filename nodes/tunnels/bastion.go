package tunnels

import (
	"context"
	"fmt"
	"net"
	"os/user"
	"strconv"
	"strings"
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

// dialJump makes a connection from the bastion, through an SSH connection to the bastion of its own.
func (t *Tunnels) dialJump(ctx context.Context, _, address string) (net.Conn, error) {
	j := t.config.Jump
	// The connections to the nodes have slots of their own, but these are all to one machine, which limits how many
	// may authenticate at once (MaxStartups).
	if err := t.jumping.take(ctx); err != nil {
		return nil, err
	}
	defer t.jumping.give()
	c, err := t.handshake(ctx, t.dialTCP, j.User, "the bastion "+j.String(), net.JoinHostPort(j.Host, strconv.Itoa(j.Port)))
	if err != nil {
		return nil, fmt.Errorf("through the bastion %s (--ssh-jump): %w", j, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, t.config.ConnectTimeout, fmt.Errorf("no answer within %v", t.config.ConnectTimeout))
	defer cancel()
	conn, err := c.open(ctx, address)
	if err != nil {
		c.end(err)
		return nil, fmt.Errorf("%w: %w", ErrUnreachable, err)
	}
	return jumped{conn, c}, nil
}

// jumped is a connection from the bastion. Close also ends the SSH connection to the bastion.
type jumped struct {
	net.Conn
	bastion *client
}

func (j jumped) Close() error {
	err := j.Conn.Close()
	j.bastion.end(net.ErrClosed)
	return err
}
