package insecure

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestParseGroups(t *testing.T) {
	t.Parallel()
	got, err := ParseGroups([]string{"4711=viewers", "4711=operators", "0=system:masters"})
	if err != nil || !slices.Equal(got[4711], []string{"viewers", "operators"}) || !slices.Equal(got[0], []string{Masters}) {
		t.Errorf("got %v, %v", got, err)
	}
	for value, want := range map[string]string{
		"ops":                     "UNIXGROUP=GROUP",
		"=a":                      "UNIXGROUP=GROUP",
		"0=":                      "UNIXGROUP=GROUP",
		"0= a":                    "UNIXGROUP=GROUP",
		"no-such-group=viewers":   "groupadd",
		"0=system:nodes":          Masters,
		"4294967296=viewers":      "groupadd",
		"-1=system:authenticated": Masters,
	} {
		if got, err := ParseGroups([]string{value}); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "--socket-group") {
			t.Errorf("%s: got %v, %v, want an error with %s", value, got, err, want)
		}
	}
}

func TestUser(t *testing.T) {
	const self, stranger = 990, 4000000000
	groups := Groups{100: {"viewers"}, 200: {"viewers", "operators"}}
	for _, test := range []struct {
		name   string
		who    credentials
		groups []string // nil: refused
	}{
		{"root", credentials{uid: 0}, []string{Masters}},
		{"the server's user", credentials{uid: self}, []string{Masters}},
		{"a member", credentials{uid: stranger, groups: []uint32{5, 100}}, []string{"viewers"}},
		{"a member of two", credentials{uid: stranger, groups: []uint32{100, 200}}, []string{"viewers", "operators"}},
		{"a stranger", credentials{uid: stranger, groups: []uint32{5}}, nil},
		{"root's group alone", credentials{uid: stranger, groups: []uint32{0}}, nil},
	} {
		got, err := groups.user(test.who, self)
		if !slices.Equal(got.Groups, test.groups) || (err != nil) != (test.groups == nil) {
			t.Errorf("%s: got %v, %v, want the groups %q", test.name, got, err, test.groups)
		}
	}
	if got, err := groups.user(credentials{uid: stranger, groups: []uint32{100}}, self); err != nil || got.Name != "unix:4000000000" {
		t.Errorf("a user without a name: got %v, %v", got, err)
	}
}

// The number that the kernel has for everybody else in a user namespace is nobody's, whoever runs the server.
func TestSharedNumber(t *testing.T) {
	const number, member = 65534, 4711
	before := shared
	shared = func(id uint32) bool { return id == number }
	t.Cleanup(func() { shared = before })
	for _, who := range []credentials{{number, nil}, {number, []uint32{100}}, {member, []uint32{number}}} {
		if got, err := (Groups{100: {"viewers"}, number: {"viewers"}}).user(who, number); err == nil {
			t.Errorf("%v: got %v, want a refusal", who, got)
		}
	}
}

// The kernel tells which user is connected.
func TestOfConnection(t *testing.T) {
	if !OwnersKnown {
		t.Skip("this system does not tell who is at the other end of a socket")
	}
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	client, err := net.Dial("unix", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	server, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if got, err := LocalUserOf(Groups{}.ConnContext(t.Context(), server)); err != nil || got.UID != uint32(os.Geteuid()) {
		t.Errorf("got %v, %v, want this process' user", got, err)
	}
	own, err := os.Getgroups()
	if err != nil {
		t.Fatal(err)
	}
	got, err := peerCredentials(server.(syscall.Conn))
	if err != nil {
		t.Fatal(err)
	}
	for _, gid := range own {
		if got := got.groups; !slices.Contains(got, uint32(gid)) {
			t.Errorf("got the groups %v, want %d among them", got, gid)
		}
	}
	if _, err := LocalUserOf(t.Context()); err == nil {
		t.Error("a request without a connection has a user")
	}
}
