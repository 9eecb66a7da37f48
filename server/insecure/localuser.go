package insecure

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/socket"
)

// Masters is the group of administrators.
const Masters = "system:masters"

// Groups maps the number of a Unix group to groups of Kubernetes, for users of this machine at the unix socket. The kernel
// tells who connects, so these users need no key, token or password.
type Groups map[uint32][]string

// ParseGroups reads UNIXGROUP=GROUP, the values of --socket-group. A Unix group is a name or a number.
func ParseGroups(values []string) (Groups, error) {
	groups := Groups{}
	var errs []error
	for _, value := range values {
		name, group, ok := strings.Cut(value, "=")
		if !ok || name == "" || group == "" || strings.TrimSpace(group) != group {
			errs = append(errs, fmt.Errorf("--socket-group %q: want UNIXGROUP=GROUP, such as ops=cluster-operators", value))
			continue
		}
		if strings.HasPrefix(group, "system:") && group != Masters {
			errs = append(errs, fmt.Errorf("--socket-group %s: groups that begin with system: belong to the cluster's own components; for administrators, name %s", value, Masters))
			continue
		}
		number := name
		if known, err := user.LookupGroup(name); err == nil {
			number = known.Gid
		}
		gid, err := strconv.ParseUint(number, 10, 32)
		if err != nil {
			errs = append(errs, fmt.Errorf("--socket-group %s: this machine has no group %q: create it (groupadd), or name another", value, name))
			continue
		}
		groups[uint32(gid)] = append(groups[uint32(gid)], group)
	}
	return groups, errors.Join(errs...)
}

// Listen listens on the socket for users of this machine. If there are groups, other users than root and the
// server's have to reach it: they may connect to the socket, and pass through the data directory to what they can
// name, but not list it. The listener is nil if this system does not tell who connects.
func (g Groups) Listen(dataDir string) (net.Listener, error) {
	if !OwnersKnown {
		return nil, nil
	}
	l, err := socket.Listen(dataDir, control.APISocket)
	if err != nil || len(g) == 0 {
		return l, err
	}
	info, err := os.Stat(dataDir)
	if err == nil {
		err = errors.Join(os.Chmod(dataDir, info.Mode().Perm()|0o011), os.Chmod(l.Path(), 0o666))
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("--socket-group: let users of this machine reach the socket: %w", err)
	}
	return l, nil
}

// LocalUser is a user of this machine, as the API server sees it.
type LocalUser struct {
	Name   string // unix: and the user's name, or number if it has none
	UID    uint32
	Groups []string
}

type localUserKey struct{}

// localPeer is who is at the other end of a connection, or why that user may not use it.
type localPeer struct {
	user LocalUser
	err  error
}

// credentials are those that a process had when it connected.
type credentials struct {
	uid    uint32
	groups []uint32
}

// ConnContext looks up whose a connection is, once, for [LocalUserOf]. Root and the user of this process are administrators;
// everybody else has the groups that g maps. It belongs into the field of that name in http.Server.
func (g Groups) ConnContext(ctx context.Context, c net.Conn) context.Context {
	p := localPeer{err: errors.New("the connection does not say whose it is")}
	if system, ok := c.(syscall.Conn); ok {
		credentials, err := peerCredentials(system)
		if err != nil {
			p.err = fmt.Errorf("this system does not tell who is connected: %w", err)
		} else {
			p.user, p.err = g.user(credentials, uint32(os.Geteuid()))
		}
	}
	return context.WithValue(ctx, localUserKey{}, p)
}

// LocalUserOf returns the user whose connection has the context ctx. The error says why a user may not use the socket.
func LocalUserOf(ctx context.Context) (LocalUser, error) {
	p, ok := ctx.Value(localUserKey{}).(localPeer)
	if !ok {
		return LocalUser{}, errors.New("the connection of this request is not known (a mistake in the server's set-up)")
	}
	return p.user, p.err
}

var shared = ownership.Shared // tests replace it

// user returns the user with these credentials, for a server that self runs.
func (g Groups) user(c credentials, self uint32) (LocalUser, error) {
	if shared(c.uid) {
		return LocalUser{}, ownership.ErrShared
	}
	u := LocalUser{Name: "unix:" + unixName(c.uid), UID: c.uid}
	if c.uid == 0 || c.uid == self {
		u.Groups = []string{Masters}
		return u, nil
	}
	for _, gid := range c.groups {
		if shared(gid) {
			continue
		}
		for _, group := range g[gid] {
			if !slices.Contains(u.Groups, group) {
				u.Groups = append(u.Groups, group)
			}
		}
	}
	if len(u.Groups) == 0 {
		return LocalUser{}, fmt.Errorf("user %s is in no Unix group that --socket-group of the server maps to a group of Kubernetes; "+
			"a user who was added to one has to log in again", unixName(c.uid))
	}
	return u, nil
}

func unixName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if known, err := user.LookupId(number); err == nil {
		return known.Username
	}
	return number
}
