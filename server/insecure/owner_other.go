//go:build !linux

package insecure

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
)

// OwnersKnown is true if this system reports which user opened a connection. Darwin
// have ways of their own to find out. Karve does not use them, because it is a developer's tool
// there.
const OwnersKnown = false

func socketOwner(_, _ netip.AddrPort) (owner, error) { return owner{}, ErrOwnersUnknown }

func heldHere(uint64) (bool, error) { return false, nil }

func dial(ctx context.Context, network, address string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, network, address)
}

func peerCredentials(syscall.Conn) (credentials, error) { return credentials{}, errors.ErrUnsupported }

func connAlive(net.Conn) bool { return false }

type containers struct{}

func newContainers() *containers { return nil }

func (*containers) of(uint64) (string, error) { return "", nil }
