package tunnels

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/karve-k8s/karve/internal/eventually"
)

// TestAddressesThatSeveralNodesClaim makes sure that no node gets the connections to another one, to
// another's Pods or to Services because it writes their addresses into its status.
func TestAddressesThatSeveralNodesClaim(t *testing.T) {
	w, own := newWorld(t), key(t)
	one, two := w.machine("10.0.0.1", own.PublicKey()), w.machine("10.0.0.2", own.PublicKey())
	for _, h := range []string{"10.0.0.1", "10.0.0.2"} {
		w.kubelet(h)
	}
	for _, a := range []string{"10.0.0.1:9999", "10.244.1.2:80", "10.96.0.1:443", "10.0.0.99:80", "n1:9999"} {
		w.echo(a)
	}
	c := w.config(own)
	c.Services = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}
	good, bad := node(1), node(2)
	good.Addresses = append(good.Addresses, "10.0.0.99", "n1")
	bad.Addresses = append(bad.Addresses, "10.0.0.1", "10.244.1.2", "10.96.0.1", "10.0.0.99", "n1")
	tunnels := w.tunnels(c, good, bad)
	await(t, tunnels, "n1", stateHealthy)
	await(t, tunnels, "n2", stateHealthy)
	services := 0
	for range 40 { // the order of nodes is random
		for _, a := range []string{"10.0.0.1:9999", "10.244.1.2:80", "10.96.0.1:443"} {
			conn, err := connect(t, tunnels, a)
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
		}
		for _, a := range []string{"10.0.0.99:80", "n1:9999"} {
			_, err := connect(t, tunnels, a)
			wants(t, err, ErrNoTunnel, "n1, n2", "status.addresses")
		}
	}
	for _, a := range []string{"10.0.0.1:9999", "10.244.1.2:80"} {
		if n, other := one.count(a), two.count(a); n != 40 || other != 0 {
			t.Errorf("to %s, %d connections went through its own node and %d through the other, want 40 and 0", a, n, other)
		}
	}
	if services = one.count("10.96.0.1:443"); services == 0 || services == 40 {
		t.Errorf("%d of 40 connections to a Service went through n1, want some", services)
	}
	// While the owner is off, the other node still does not get its address.
	one.mu.Lock()
	one.authorized = key(t).PublicKey()
	one.mu.Unlock()
	one.kill()
	await(t, tunnels, "n1", stateFailed)
	_, err := connect(t, tunnels, "10.0.0.1:9999")
	if of := (*Error)(nil); !errors.As(err, &of) || of.Node != "n1" {
		t.Errorf("while n1 is off, a connection to its address says %v", err)
	}
	// Nor does one whose PodCIDR has it, or a part of another's.
	bad.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	tunnels.Set(bad)
	_, err = connect(t, tunnels, "10.0.0.1:9999")
	wants(t, err, ErrNoTunnel, "n1, n2", "spec.podCIDRs")
	_, err = connect(t, tunnels, "10.244.1.2:80")
	wants(t, err, ErrNoTunnel, "n1, n2", "spec.podCIDRs")
	if n := two.count("10.0.0.1:9999"); n != 0 {
		t.Errorf("%d connections to n1 went through n2", n)
	}
}

// TestNodesThatAreOffHoldUpNoOther has more of them than connections that are made at once.
func TestNodesThatAreOffHoldUpNoOther(t *testing.T) {
	w, own := newWorld(t), key(t)
	w.machine("10.0.0.1", own.PublicKey())
	w.kubelet("10.0.0.1")
	var hosts []string
	var off []Node
	for i := 2; i <= 40; i++ {
		hosts, off = append(hosts, fmt.Sprintf("10.0.0.%d", i)), append(off, node(i))
	}
	c := w.config(own)
	c.Dial, c.ConnectTimeout = w.blackHole(hosts...), time.Hour
	tunnels := w.tunnels(c, off...)
	tunnels.Set(node(1))
	await(t, tunnels, "n1", stateHealthy)
}

// TestOtherAddressesKeepThePause makes sure that a node that writes other addresses all the time does not
// make the server connect all the time.
func TestOtherAddressesKeepThePause(t *testing.T) {
	w, own := newWorld(t), key(t)
	m := w.machine("10.0.0.9", own.PublicKey())
	w.kubelet("10.0.0.9")
	c := w.config(own)
	c.Retry.Duration, c.Retry.Cap = time.Hour, time.Hour
	n := node(1)
	n.Addresses = nil
	tunnels := w.tunnels(c, n)
	await(t, tunnels, "n1", stateFailed)
	n.Addresses = []string{"10.0.0.1"} // the first ones are tried at once
	tunnels.Set(n)
	eventually.Nil(t, "the node is off", func() error {
		if s := await(t, tunnels, "n1", stateFailed); !strings.Contains(s.Problem, "no route to host") {
			return errors.New(s.Problem)
		}
		return nil
	})
	n.Addresses = []string{"10.0.0.9"}
	tunnels.Set(n)
	if s := tunnels.Status()[0]; s.State != string(stateFailed) {
		t.Errorf("the status is %+v, want a pause", s)
	}
	n.Ready = true
	tunnels.Set(n)
	await(t, tunnels, "n1", stateHealthy)
	if got := m.accepted.Load(); got != 1 {
		t.Errorf("%d connections, want 1", got)
	}
}

func TestPodsOfANodeThatIsOff(t *testing.T) {
	w, own := newWorld(t), key(t)
	w.machine("10.0.0.2", own.PublicKey())
	w.kubelet("10.0.0.2")
	w.echo("10.244.1.2:80")
	c := w.config(own)
	c.Dial, c.ConnectTimeout = w.blackHole("10.0.0.1"), time.Hour
	tunnels := w.tunnels(c, node(1), node(2))
	await(t, tunnels, "n2", stateHealthy)
	conn, err := connect(t, tunnels, "10.244.1.2:80")
	if err != nil {
		t.Fatal(err)
	}
	if err := says(conn, "through n2"); err != nil {
		t.Error(err)
	}
	// n1 alone is pending: a caller that gives up learns both why and what it waited for.
	given, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err = tunnels.Dial(nil)(given, "tcp", "10.0.0.1:10250")
	wants(t, err, context.Canceled, "n1", "it is being made")
}

// TestNodeThatDoesNotAnswerLeavesTimeForOthers has a node that is healthy, and then answers no request.
func TestNodeThatDoesNotAnswerLeavesTimeForOthers(t *testing.T) {
	w, own := newWorld(t), key(t)
	one := w.machine("10.0.0.1", own.PublicKey())
	w.machine("10.0.0.2", own.PublicKey())
	w.kubelet("10.0.0.1")
	w.kubelet("10.0.0.2")
	w.echo("10.244.1.2:80")
	tunnels := w.tunnels(w.config(own), node(1), node(2))
	await(t, tunnels, "n1", stateHealthy)
	await(t, tunnels, "n2", stateHealthy)
	one.mu.Lock()
	one.deaf = true
	one.mu.Unlock()
	limited, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := tunnels.Dial(nil)(limited, "tcp", "10.244.1.2:80")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := says(conn, "through n2"); err != nil {
		t.Error(err)
	}
}

// TestHealthAtTheAddressOfTheAPIServer has a node behind NAT: SSH answers at its external address, and
// its kubelet at the internal one.
func TestHealthAtTheAddressOfTheAPIServer(t *testing.T) {
	w, own := newWorld(t), key(t)
	w.machine("203.0.113.9", own.PublicKey())
	w.kubelet("10.0.0.1")
	n := node(1)
	n.Addresses = append(n.Addresses, "203.0.113.9")
	tunnels := w.tunnels(w.config(own), n)
	if s := await(t, tunnels, "n1", stateHealthy); s.Address != "203.0.113.9:22" {
		t.Errorf("the status is %+v", s)
	}
	if _, err := connect(t, tunnels, "10.0.0.1:10250"); err != nil {
		t.Error(err)
	}
}

func TestBastionThatDoesNotAnswer(t *testing.T) {
	w, own := newWorld(t), key(t)
	c := w.config(own)
	c.Dial, c.ConnectTimeout = w.blackHole("bastion.example"), 100*time.Millisecond
	var err error
	if c.Jump, err = ParseJump("karve@bastion.example"); err != nil {
		t.Fatal(err)
	}
	tunnels := w.tunnels(c, node(1), node(2))
	for _, n := range []string{"n1", "n2"} {
		if s := await(t, tunnels, n, stateFailed); !strings.Contains(s.Problem, "--ssh-jump") || !strings.Contains(s.Problem, "bastion.example:22 does not answer") {
			t.Errorf("the problem is %q", s.Problem)
		}
	}
	// A node that is given up ends its attempt.
	c.ConnectTimeout = time.Hour
	tunnels = w.tunnels(c, node(1))
	closed := make(chan struct{})
	go func() {
		tunnels.Remove("n1")
		tunnels.Close()
		close(closed)
	}()
	eventually.Receive(t, "Close returns", closed)
}

func TestAuthorizes(t *testing.T) {
	one, two := key(t), key(t)
	lines := "# nodes\n" + AuthorizedKey(one, "karve@old-name") + "\n" + strings.TrimSpace(string(ssh.MarshalAuthorizedKey(two.PublicKey())))
	if ok, others := Authorizes(lines, AuthorizedKey(one, "karve@new-name")); !ok || others != 1 {
		t.Errorf("the key with another comment: %v, %d others", ok, others)
	}
	if ok, others := Authorizes(lines, AuthorizedKey(key(t), "karve@old-name")); ok || others != 2 {
		t.Errorf("another key with the same comment: %v, %d others", ok, others)
	}
}
