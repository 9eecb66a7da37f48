package insecure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/user"
	"strconv"
	"sync"

	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/ownports"
)

// errNoSocket is returned by socketOwner if the kernel has no such socket, or if no process
// holds it any more.
var errNoSocket = errors.New("no process on this machine holds the other end of the connection, or its socket is bound to a network device, or the kernel's module tcp_diag is missing")

// owner describes a socket's owner: the user, and on Linux the control group, that opened it.
type owner struct {
	uid    uint32
	cgroup uint64 // the control group of the process; 0: unknown
	inode  uint64 // of the socket
}

// peer is the other end of one connection. Its owner is looked up once, after the first
// request has arrived and before it is handled.
type peer struct {
	conn     net.Conn
	once     sync.Once
	sentence string // why the connection is refused; empty: it is not
}

type peerKey struct{}

// ConnContext stores the connection for the [Guard]. It belongs into the field of that name in
// http.Server.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, peerKey{}, &peer{conn: c})
}

// owners decides which users may use the listener. Tests replace its fields.
type owners struct {
	known     bool                  // whether the system can tell the owner of a connection
	self      uint32                // the user this process runs as
	shared    func(uid uint32) bool // whether other users have this number, too
	lookup    func(local, remote netip.AddrPort) (owner, error)
	held      func(inode uint64) (bool, error)    // whether this process opened the socket, other than by [Dial]
	container func(cgroup uint64) (string, error) // the name of the control group's container, if it has one
	alive     func(c net.Conn) bool
	local     func(netip.Addr) bool
}

func thisProcess() owners {
	return owners{
		known: OwnersKnown,
		// The kernel records the file system user of the socket's creator,
		// which follows the effective user.
		self:      uint32(os.Geteuid()),
		shared:    ownership.Shared,
		lookup:    socketOwner,
		held:      heldHere,
		container: newContainers().of,
		alive:     connAlive,
		local:     ownports.IsLocal,
	}
}

// refuse returns why the connection of this request is refused, or nothing.
func (o owners) refuse(ctx context.Context, opts *Options) string {
	p, ok := ctx.Value(peerKey{}).(*peer)
	if !ok {
		return "this port has no authentication, and the connection of this request is not known (a mistake in the server's set-up)"
	}
	p.once.Do(func() { p.sentence = o.judge(p.conn, opts) })
	return p.sentence
}

func (o owners) judge(c net.Conn, opts *Options) string {
	here, there := addrPort(c.LocalAddr()), addrPort(c.RemoteAddr())
	if !here.IsValid() || !there.IsValid() {
		return unknownOwner(errors.New("it is not a TCP connection"))
	}
	// A loopback address does not keep other machines out: where route_localnet is
	// set, as kube-proxy does, the kernel delivers their packets to it.
	if !o.local(there.Addr()) {
		if opts.AllowRemote {
			return "" // the users of another machine are not known here
		}
		return otherMachine(there.Addr())
	}
	if !o.known {
		if opts.AnyUser {
			return ""
		}
		return unknownOwner(ErrOwnersUnknown)
	}
	// The peer's local address is the server's remote one.
	of, err := o.lookup(there, here)
	if err == nil && of.uid == o.self {
		var ours bool
		if ours, err = o.ours(of, there, here); ours {
			return ownConnection
		}
	}
	if opts.AnyUser {
		return ""
	}
	switch {
	case err != nil:
		return unknownOwner(err)
	case o.shared(of.uid):
		return unknownOwner(ownership.ErrShared)
	case of.uid != 0 && of.uid != o.self:
		return otherUser(of.uid, o.self)
	case !o.alive(c):
		// The socket just found may be a later one with the same addresses: a
		// user could send a request, reset the connection and wait for root to
		// get the same port. While the server's end lives, the kernel does not reuse
		// the addresses. So if it is alive now, the lookup found the right socket.
		return unknownOwner(errNoSocket)
	}
	switch container, err := o.container(of.cgroup); {
	case err != nil:
		return unknownContainer(err)
	case container != "":
		return inContainer(container)
	}
	return ""
}

// ours reports whether the peer is this process. The process may close the socket while it is looked
// for, so what nobody else holds either is an error.
func (o owners) ours(of owner, there, here netip.AddrPort) (bool, error) {
	if held, err := o.held(of.inode); held || err != nil {
		return held, err
	}
	again, err := o.lookup(there, here)
	if err == nil && again.inode != of.inode {
		err = errNoSocket
	}
	return false, err
}

const ownConnection = "refused: the server itself opened this connection, because a webhook, redirect or Service points here; " +
	"a program with a server in its process connects by insecure.Dial"

func otherMachine(ip netip.Addr) string {
	return fmt.Sprintf("this connection comes from another machine or container (%s), and this port, which has no authentication, is only for this machine; "+
		"use the authenticated port with a kubeconfig, or start the server with %s", ip, flagAllowRemote)
}

func otherUser(uid, self uint32) string {
	allowed := "root"
	if self != 0 {
		allowed += " and " + userName(self)
	}
	return fmt.Sprintf("this connection belongs to %s, and this port, which has no authentication, is only for %s; "+
		"use the authenticated port with a kubeconfig, or start the server with %s", userName(uid), allowed, flagAnyUser)
}

func inContainer(container string) string {
	return fmt.Sprintf("this connection comes from a container, or from what runs containers (%s), and this port, which has no authentication, is only for other processes; "+
		"use the authenticated port with a kubeconfig or a service account, or start the server with %s", container, flagAnyUser)
}

func unknownContainer(err error) string {
	return fmt.Sprintf("this port has no authentication, and the server cannot find out whether this connection comes from a container (%v); "+
		"try again, use the authenticated port with a kubeconfig, or start the server with %s", err, flagAnyUser)
}

func unknownOwner(err error) string {
	return fmt.Sprintf("this port has no authentication, and which local user this connection belongs to cannot be found out (%v); "+
		"use the authenticated port with a kubeconfig, or start the server with %s", err, flagAnyUser)
}

func userName(uid uint32) string {
	id := strconv.FormatUint(uint64(uid), 10)
	if u, err := user.LookupId(id); err == nil && u.Username != "" {
		return "the user " + u.Username + " (uid " + id + ")"
	}
	return "the user with uid " + id
}

// addrPort is a's address. An IPv4 address is IPv4 whatever the family of the socket.
func addrPort(a net.Addr) netip.AddrPort {
	tcp, ok := a.(interface{ AddrPort() netip.AddrPort }) // *net.TCPAddr, and what package ports makes of it
	if !ok {
		return netip.AddrPort{}
	}
	ap := tcp.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}
