package insecure

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// serverOptions makes the test binary a server at a free port of 127.0.0.1, which
// prints its address and ends with its standard input: "any-user" or "strict".
const serverOptions = "KARVE_INSECURE_TEST_SERVER"

func serveUntilInputEnds(kind string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	ctx, stop := context.WithCancel(context.Background())
	go func() { io.Copy(io.Discard, os.Stdin); stop() }()
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
	return Serve(ctx, l, ok, Options{AnyUser: kind == "any-user"})
}

// machines are two network namespaces with a cable between them: "ours" delivers to
// 127.0.0.1 what comes by the cable, as kube-proxy sets it up for NodePorts
// (route_localnet), and "theirs" sends there.
type machines struct{ ours, theirs string }

func cable(t *testing.T) machines {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make network namespaces")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("there is no ip (Debian's package iproute2)")
	}
	m := machines{fmt.Sprintf("karve-test-ours-%d", os.Getpid()), fmt.Sprintf("karve-test-theirs-%d", os.Getpid())}
	for _, name := range []string{m.ours, m.theirs} {
		if out, err := exec.Command("ip", "netns", "add", name).CombinedOutput(); err != nil {
			t.Skipf("no network namespace can be made: %v: %s", err, out)
		}
		t.Cleanup(func() {
			if out, err := exec.Command("ip", "netns", "delete", name).CombinedOutput(); err != nil {
				t.Errorf("a network namespace stays: %v: %s", err, out)
			}
		})
	}
	for _, script := range []string{
		"ip -n OURS link add cable type veth peer name cable netns THEIRS",
		"ip -n OURS link set lo up",
		"ip -n OURS address add 192.0.2.1/24 dev cable",
		"ip -n OURS link set cable up",
		"ip netns exec OURS sysctl -q -w net.ipv4.conf.cable.route_localnet=1",
		"ip -n THEIRS address add 192.0.2.2/24 dev cable",
		"ip -n THEIRS link set cable up",
		"ip netns exec THEIRS sysctl -q -w net.ipv4.conf.cable.route_localnet=1",
		"ip -n THEIRS route add 127.0.0.1/32 via 192.0.2.1 dev cable src 192.0.2.2",
	} {
		args := strings.Fields(strings.NewReplacer("OURS", m.ours, "THEIRS", m.theirs).Replace(script))
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
	}
	return m
}

// in is a command of this test's binary in a namespace.
func in(t *testing.T, namespace, variable string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(stop)
	cmd := exec.CommandContext(ctx, "ip", "netns", "exec", namespace, self)
	cmd.Env = append(os.Environ(), variable)
	return cmd
}

// A listener at 127.0.0.1 is no secret from neighbours where route_localnet is set:
// they get a connection, and no answer but a refusal.
func TestNeighboursAreRefused(t *testing.T) {
	m := cable(t)
	for _, kind := range []string{"strict", "any-user"} {
		server := in(t, m.ours, serverOptions+"="+kind)
		stdin, err := server.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		stdout, err := server.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		at, err := bufio.NewReader(stdout).ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		url := childURL + "=http://" + strings.TrimSpace(at)
		for namespace, want := range map[string]string{m.ours: "200 ok", m.theirs: "403 this connection comes from another machine or container (192.0.2.2)"} {
			got, err := in(t, namespace, url).CombinedOutput()
			if err != nil || !strings.HasPrefix(string(got), want) {
				t.Errorf("%s, from %s: got %q, %v, want %q", kind, namespace, got, err, want)
			}
		}
		stdin.Close()
		if err := server.Wait(); err != nil {
			t.Errorf("%s: the server ended with %v", kind, err)
		}
	}
}
