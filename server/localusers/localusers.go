// Package localusers says which user of this machine is at the other end of a unix socket, and which groups of
// Kubernetes that user has. The kernel tells who connects, so these users need no key, token or password.
package localusers

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

	"github.com/karve-k8s/karve/internal/ownership"
)

// Masters is the group of administrators.
const Masters = "system:masters"

// Groups maps the number of a Unix group to groups of Kubernetes.
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

// User is a user of this machine, as the API server sees it.
type User struct {
	Name   string // unix: and the user's name, or number if it has none
	UID    uint32
	Groups []string
}

type peerKey struct{}

// peer is who is at the other end of a connection, or why that user may not use it.
type peer struct {
	user User
	err  error
}

// credentials are those that a process had when it connected.
type credentials struct {
	uid    uint32
	groups []uint32
}

// ConnContext looks up whose a connection is, once, for [Of]. Root and the user of this process are administrators;
// everybody else has the groups that g maps. It belongs into the field of that name in http.Server.
func (g Groups) ConnContext(ctx context.Context, c net.Conn) context.Context {
	p := peer{err: errors.New("the connection does not say whose it is")}
	if system, ok := c.(syscall.Conn); ok {
		credentials, err := peerCredentials(system)
		if err != nil {
			p.err = fmt.Errorf("this system does not tell who is connected: %w", err)
		} else {
			p.user, p.err = g.user(credentials, uint32(os.Geteuid()))
		}
	}
	return context.WithValue(ctx, peerKey{}, p)
}

// Of returns the user whose connection has the context ctx. The error says why a user may not use the socket.
func Of(ctx context.Context) (User, error) {
	p, ok := ctx.Value(peerKey{}).(peer)
	if !ok {
		return User{}, errors.New("the connection of this request is not known (a mistake in the server's set-up)")
	}
	return p.user, p.err
}

var shared = ownership.Shared // tests replace it

// user returns the user with these credentials, for a server that self runs.
func (g Groups) user(c credentials, self uint32) (User, error) {
	if shared(c.uid) {
		return User{}, ownership.ErrShared
	}
	u := User{Name: "unix:" + userName(c.uid), UID: c.uid}
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
		return User{}, fmt.Errorf("user %s is in no Unix group that --socket-group of the server maps to a group of Kubernetes; "+
			"a user who was added to one has to log in again", userName(c.uid))
	}
	return u, nil
}

func userName(uid uint32) string {
	number := strconv.FormatUint(uint64(uid), 10)
	if known, err := user.LookupId(number); err == nil {
		return known.Username
	}
	return number
}
