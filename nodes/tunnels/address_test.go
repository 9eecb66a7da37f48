package tunnels

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
)

// hostile are addresses with which a node would write known_hosts or a command line itself.
func hostile(t *testing.T) []string {
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(key(t).PublicKey())))
	return []string{
		"fd00::5% " + line + "\n@cert-authority * " + line + "\n#",
		"::1%\n@cert-authority * " + line + "\nx",
		"::1%,*",
		"::1%'; reboot; '",
		"fe80::1%eth0",
		"*", "10.0.0.*", "!10.0.0.1", "10.0.0.1,10.0.0.2", "a b", "-R", "a'b", "[::1]", "10.0.0.1:22", "", "#", "|1|x|y", strings.Repeat("a", 1<<20),
	}
}

func TestCheckAddress(t *testing.T) {
	for _, a := range []string{"10.0.0.1", "fd00::5", "::ffff:10.0.0.1", "n1", "n1.example.org", "N1.Example.Org"} {
		if err := CheckAddress(a); err != nil {
			t.Error(err)
		}
	}
	for _, a := range hostile(t) {
		err := CheckAddress(a)
		wants(t, err, ErrAddress)
		if strings.ContainsAny(err.Error(), "\n\r") || len(err.Error()) > 300 {
			t.Errorf("the error is %q", err)
		}
	}
}

// TestAddressesInjectNothing makes sure that a node with a hostile address reaches neither
// known_hosts nor the network, that karve status says why, and that other nodes are not concerned.
func TestAddressesInjectNothing(t *testing.T) {
	w, own := newWorld(t), key(t)
	w.machine("10.0.0.1", own.PublicKey())
	w.kubelet("10.0.0.1")
	w.machine("10.0.0.2", own.PublicKey())
	w.kubelet("10.0.0.2")
	c := w.config(own)
	tunnels := w.tunnels(c, node(1))
	await(t, tunnels, "n1", stateHealthy)
	before, err := os.ReadFile(c.HostKeys.Path)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range hostile(t) {
		w.machine(a, own.PublicKey()) // it would answer
		w.kubelet(a)
	}
	tunnels.Set(Node{Name: "bad", Addresses: hostile(t)})
	s := await(t, tunnels, "bad", stateFailed)
	for _, want := range []string{"no address", ErrAddress.Error(), "nor are others like it"} {
		if !strings.Contains(s.Problem, want) {
			t.Errorf("the problem %q does not say %q", s.Problem, want)
		}
	}
	if after, err := os.ReadFile(c.HostKeys.Path); err != nil || string(after) != string(before) {
		t.Errorf("known_hosts is %q now, %v", after, err)
	}
	if _, err := connect(t, tunnels, "[::1%25,*]:10250"); err == nil {
		t.Error("a connection to an address with a zone is made")
	}
	// A node that has a good address, too, is reached at that, and the other one is still named.
	tunnels.Set(Node{Name: "half", Addresses: []string{"::1%,*", "10.0.0.2"}})
	if s := await(t, tunnels, "half", stateHealthy); s.Address != "10.0.0.2:22" || !strings.Contains(s.Problem, ErrAddress.Error()) {
		t.Errorf("the status is %+v", s)
	}
}

// TestHostKeysOfHostileAddresses makes sure that HostKeys does not depend on its callers.
func TestHostKeysOfHostileAddresses(t *testing.T) {
	h := &HostKeys{Path: filepath.Join(t.TempDir(), "known_hosts")}
	for _, a := range hostile(t) {
		address := net.JoinHostPort(a, "22")
		_, err := h.of(address)
		wants(t, err, ErrHostKey)
		wants(t, hostKeys{HostKeys: h, address: address}.check(nil, key(t).PublicKey()), ErrHostKey)
	}
	if content, err := os.ReadFile(h.Path); err == nil {
		t.Errorf("known_hosts is %q", content)
	}
	for _, a := range []string{"10.0.0.1:22", "10.0.0.1:2222", "[fd00::5]:22", "[fd00::5]:2222", "n1.example.org:22"} {
		k := hostKeys{HostKeys: h, address: a}
		pinned := key(t).PublicKey()
		if err := k.check(nil, pinned); err != nil {
			t.Error(err)
		}
		if err := k.check(nil, pinned); err != nil {
			t.Errorf("the pinned key of %s: %v", a, err)
		}
		wants(t, k.check(nil, key(t).PublicKey()), ErrHostKey, "has changed")
	}
}

func TestBothFailed(t *testing.T) {
	name := fmt.Errorf("%w: %w", ErrUnreachable, &net.DNSError{Err: "no such host", Name: "node-1"})
	one, two := errors.New("one"), errors.New("two")
	for _, c := range []struct {
		first, second error
		want          string
	}{{nil, one, "one"}, {one, two, "one; two"}, {one, name, "one"}, {name, one, "one"}, {nil, name, name.Error()}} {
		if got := bothFailed(c.first, c.second); got.Error() != c.want {
			t.Errorf("%v and %v: got %v, want %s", c.first, c.second, got, c.want)
		}
	}
}
