package tunnels

import (
	"errors"
	"fmt"
)

// The causes of failures. The error of a connection wraps one of them, and mostly an [Error].
var (
	// ErrUnreachable means that there was no SSH server, or that the network did not reach it.
	ErrUnreachable = errors.New("unreachable")
	// ErrAuthentication means that the SSH server refused the user or the key.
	ErrAuthentication = errors.New("authentication refused")
	// ErrHostKey means that the SSH server's key is not the one that was pinned.
	ErrHostKey = errors.New("host key refused")
	// ErrNoTunnel means that no tunnel is healthy.
	ErrNoTunnel = errors.New("no healthy SSH tunnel")
	// ErrEnded means that the tunnel ended while the connection was open.
	ErrEnded = errors.New("ended")
	// ErrDestination means that the tunnel works, but the node could not connect to the address.
	ErrDestination = errors.New("cannot connect")
	// ErrForwarding means that the SSH server does not forward connections.
	ErrForwarding = errors.New("forwarding is forbidden")
	// ErrKey means that there is no usable key to authenticate with.
	ErrKey = errors.New("no usable SSH key")
)

// Error is a failure of the tunnel to a node, or of a connection through it.
type Error struct {
	Node string // its name
	Err  error
}

func (e *Error) Error() string { return fmt.Sprintf("SSH tunnel to %s: %v", e.Node, e.Err) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// reasons are the values of the label reason of the metric of failures.
var reasons = []struct {
	err    error
	reason string
}{
	{ErrHostKey, "host_key"},
	{ErrAuthentication, "authentication"},
	{ErrKey, "key"},
	{ErrUnreachable, "unreachable"},
	{ErrEnded, "ended"},
}

func reasonOf(err error) string {
	for _, r := range reasons {
		if errors.Is(err, r.err) {
			return r.reason
		}
	}
	return "other"
}
