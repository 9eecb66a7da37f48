// Package insecure is the plain-HTTP listener that Kubernetes had until 1.24
// (--insecure-bind-address, --insecure-port), with a guard in front.
//
// Every client of the listener is an administrator of the cluster, because the API does
// not authenticate it. Four kinds of senders could reach a loopback port without being
// meant to. The guard refuses each with a sentence that says why:
//
//   - other machines: [Check] refuses addresses that are not loopback, and [Guard]
//     refuses peers that are not on this machine;
//   - web pages in a browser on this machine: [Guard] refuses foreign Host names
//     (DNS rebinding), foreign origins and what only a page would send;
//   - other local users: [Guard] asks the kernel who owns the socket at the other
//     end, where the kernel tells ([OwnersKnown]);
//   - containers that share the network of this machine, such as Pods with
//     hostNetwork: [Guard] asks for the control group of that socket's process.
package insecure

import (
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/sirupsen/logrus"
)

// The flags that messages of this package name.
const (
	flagBindAddress = "--insecure-bind-address"
	flagAllowRemote = "--insecure-allow-remote"
	flagAnyUser     = "--insecure-any-user"
)

// MaxConcurrentStreams is the number of HTTP/2 requests that one connection may have in flight.
const MaxConcurrentStreams = 250

// ErrRemote is wrapped by the error of [Check] for an address that other machines may reach.
var ErrRemote = errors.New("is not a loopback address")

// ErrOwnersUnknown is wrapped by the error of [CheckOwners].
var ErrOwnersUnknown = errors.New("this system does not tell which user opens a connection")

// ErrStillRunning is wrapped by the error of [Serve] when requests outlived
// ShutdownTimeout and did not end when their connections were closed either.
var ErrStillRunning = errors.New("requests still running")

// Options are the settings of the listener. The zero value is the strictest:
// only root and the server's own user, only this machine, HTTP/1.1 and HTTP/2.
type Options struct {
	// AnyUser accepts every local user, not only root and the server's user, and containers
	// that share this machine's network. Without it, a system that does not tell the owner of
	// a connection has no user to accept.
	AnyUser bool

	// AllowRemote accepts connections from other machines, and their Host headers
	// when the listener is bound to 0.0.0.0 or [::].
	AllowRemote bool

	// Addr is the address that the listener is bound to. Requests may name it in their Host
	// header. If it is invalid (zero), [Serve] takes it from the listener; [Guard] by itself
	// then accepts loopback names only.
	Addr netip.Addr

	// DisableHTTP2 leaves HTTP/1.1 only.
	DisableHTTP2 bool

	// ShutdownTimeout is how long [Serve] waits for requests in flight after its context has
	// ended; 0 closes them immediately.
	ShutdownTimeout time.Duration

	// Log receives refusals (one warning per kind and minute, the others at debug level) and
	// errors of net/http (debug). If it is nil, nothing is logged.
	Log *logrus.Entry
}

// Check reports whether the listener may be bound to bindAddress, the value of
// --insecure-bind-address. It must be an IP address, and one of the loopback
// addresses (127.0.0.0/8, ::1) unless allowRemote is set. The error names the
// flag, its value and what to do; it wraps [ErrRemote] in the second case.
func Check(bindAddress string, allowRemote bool) error {
	ip, err := netip.ParseAddr(bindAddress)
	if err != nil {
		return fmt.Errorf("%s=%q: not an IP address; use 127.0.0.1 or ::1", flagBindAddress, bindAddress)
	}
	if allowRemote || ip.Unmap().IsLoopback() {
		return nil
	}
	return fmt.Errorf("%s=%s %w: every client that can reach this port controls the cluster without authentication; "+
		"use 127.0.0.1, or add %s if every client that can reach that address may do so",
		flagBindAddress, bindAddress, ErrRemote, flagAllowRemote)
}

// CheckOwners reports whether the listener may be opened on a system that tells the owner of a
// connection (known, see [OwnersKnown]) or does not. If it does not, the user has to allow
// every local user. The error names the remedy and wraps [ErrOwnersUnknown].
func CheckOwners(known, anyUser bool) error {
	if known || anyUser {
		return nil
	}
	return fmt.Errorf("%w, so every local user, every program and, with Docker Desktop, every container would be an administrator; "+
		"leave the port off, or add %s if all of them may be", ErrOwnersUnknown, flagAnyUser)
}
