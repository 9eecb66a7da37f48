package insecure

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
)

// TestJudge has the parts of the system replaced, so that it is about every system.
func TestJudge(t *testing.T) {
	yes, no := func(net.Conn) bool { return true }, func(net.Conn) bool { return false }
	const inPod, failing = 77, 78
	open := func(uint64) (bool, error) { return true, nil }
	system := owners{
		known: true, self: 7, alive: yes, shared: func(uid uint32) bool { return uid == 9 },
		held:   func(uint64) (bool, error) { return false, nil },
		lookup: func(_, _ netip.AddrPort) (owner, error) { return owner{}, nil },
		container: func(cgroup uint64) (string, error) {
			switch cgroup {
			case inPod:
				return "control group /kubepods", nil
			case failing:
				return "", errors.New("too many open files")
			}
			return "", nil
		},
		local: func(a netip.Addr) bool { return a.IsLoopback() || a == netip.MustParseAddr("192.0.2.1") },
	}
	type change func(*owners)
	as := func(uid uint32, cgroup uint64, err error) change {
		return func(o *owners) {
			o.lookup = func(_, _ netip.AddrPort) (owner, error) { return owner{uid: uid, cgroup: cgroup, inode: 1}, err }
		}
	}
	gone := func(o *owners) { o.alive = no }
	ours := func(o *owners) { as(7, 1, nil)(o); o.held = open }
	closed := func(o *owners) { // the server's own, which it closes while the guard looks
		inode := uint64(0)
		o.lookup = func(_, _ netip.AddrPort) (owner, error) { inode++; return owner{uid: 7, inode: inode}, nil }
	}
	noFiles := func(o *owners) {
		as(7, 1, nil)(o)
		o.held = func(uint64) (bool, error) { return false, errors.New("no /proc") }
	}
	unknown := func(o *owners) { o.known = false; as(0, 0, ErrOwnersUnknown)(o); o.alive = no }
	for _, tc := range []struct {
		name   string
		change change
		remote string
		opts   Options
		want   string
	}{
		{"root", as(0, 1, nil), "127.0.0.1:9", Options{}, ""},
		{"our user", as(7, 1, nil), "127.0.0.1:9", Options{}, ""},
		{"this process", ours, "127.0.0.1:9", Options{}, "the server itself opened this connection"},
		{"this process, any user", ours, "127.0.0.1:9", Options{AnyUser: true}, "the server itself opened this connection"},
		{"this process, remote allowed", ours, "192.0.2.1:9", Options{AnyUser: true, AllowRemote: true}, "the server itself opened this connection"},
		{"this process, which has gone away", closed, "127.0.0.1:9", Options{}, "no process"},
		{"our user, and perhaps this process", noFiles, "127.0.0.1:9", Options{}, "no /proc"},
		{"any user, and perhaps this process", noFiles, "127.0.0.1:9", Options{AnyUser: true}, ""},
		{"root, where this process has the socket open too", func(o *owners) { as(0, 1, nil)(o); o.held = open }, "127.0.0.1:9", Options{}, ""},
		{"another user", as(8, 1, nil), "127.0.0.1:9", Options{}, "uid 8"},
		{"a user with the number of others", as(9, 1, nil), "127.0.0.1:9", Options{}, "user namespace"},
		{"our user with the number of others", func(o *owners) { as(9, 1, nil)(o); o.self = 9 }, "127.0.0.1:9", Options{}, "user namespace"},
		{"another user, any", as(8, 1, nil), "127.0.0.1:9", Options{AnyUser: true}, ""},
		{"root that is gone", gone, "127.0.0.1:9", Options{}, "no process"},
		{"not found", as(0, 0, errNoSocket), "127.0.0.1:9", Options{}, "no process"},
		{"not found, remote allowed, local", as(0, 0, errNoSocket), "192.0.2.1:9", Options{AllowRemote: true}, "no process"},
		{"lookup fails", as(0, 0, errors.New("boom")), "127.0.0.1:9", Options{}, "boom"},
		{"root of a container", as(0, inPod, nil), "127.0.0.1:9", Options{}, "/kubepods"},
		{"root of a group that cannot be searched for", as(0, failing, nil), "127.0.0.1:9", Options{}, "too many open files"},
		{"our user in a container", as(7, inPod, nil), "127.0.0.1:9", Options{}, "/kubepods"},
		{"another user in a container", as(8, inPod, nil), "127.0.0.1:9", Options{}, "uid 8"},
		{"root of a container, any user", as(0, inPod, nil), "127.0.0.1:9", Options{AnyUser: true}, ""},
		// With route_localnet a neighbour reaches a listener at 127.0.0.1.
		{"another machine", gone, "192.0.2.9:9", Options{}, "another machine"},
		{"another machine, any user", gone, "192.0.2.9:9", Options{AnyUser: true}, "another machine"},
		{"another machine, allowed", gone, "192.0.2.9:9", Options{AllowRemote: true}, ""},
		{"another machine, both allowed", gone, "192.0.2.9:9", Options{AllowRemote: true, AnyUser: true}, ""},
		// Systems that do not tell the owner.
		{"unknown owner", unknown, "127.0.0.1:9", Options{}, "--insecure-any-user"},
		{"unknown owner, any user", unknown, "127.0.0.1:9", Options{AnyUser: true}, ""},
		{"unknown owner, another machine", unknown, "192.0.2.9:9", Options{AnyUser: true}, "another machine"},
	} {
		o := system
		tc.change(&o)
		got := o.judge(fakeConn{here: addr(t, "127.0.0.1:8080"), there: addr(t, tc.remote)}, &tc.opts)
		if (got == "") != (tc.want == "") || !strings.Contains(got, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.want)
		}
	}
	for _, opts := range []Options{{}, {AnyUser: true}} {
		if got := thisProcess().refuse(context.Background(), &opts); got == "" {
			t.Errorf("%+v: a request without a known connection was accepted", opts)
		}
		a, b := net.Pipe()
		if got := thisProcess().judge(a, &opts); !strings.Contains(got, "not a TCP connection") {
			t.Errorf("%+v, a pipe: got %q", opts, got)
		}
		a.Close()
		b.Close()
	}
}

// fakeConn has addresses only.
type fakeConn struct {
	net.Conn
	here, there net.Addr
}

func (c fakeConn) LocalAddr() net.Addr  { return c.here }
func (c fakeConn) RemoteAddr() net.Addr { return c.there }

func addr(t *testing.T, s string) net.Addr {
	t.Helper()
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(s))
}
