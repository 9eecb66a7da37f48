package insecure

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/karve-k8s/karve/internal/eventually"
)

// childURL makes the test binary a client: it requests the URL and prints the
// status and the body.
const childURL = "KARVE_INSECURE_TEST_URL"

// childDevice is the network interface that the client binds its socket to.
const childDevice = "KARVE_INSECURE_TEST_DEVICE"

// bindTo binds the socket to a device before it connects.
func bindTo(device string) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, c syscall.RawConn) error {
		if device == "" {
			return nil
		}
		var bound error
		if err := c.Control(func(fd uintptr) { bound = syscall.BindToDevice(int(fd), device) }); err != nil {
			return err
		}
		return bound
	}
}

func TestMain(m *testing.M) {
	if url := os.Getenv(childURL); url != "" {
		dialer := net.Dialer{Control: bindTo(os.Getenv(childDevice))}
		client := http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
		resp, err := client.Get(url)
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		body, err := io.ReadAll(resp.Body)
		fmt.Printf("%d %s %v", resp.StatusCode, body, err)
		os.Exit(0)
	}
	if kind := os.Getenv(serverOptions); kind != "" {
		if err := serveUntilInputEnds(kind); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// getAs requests url as another user and returns "200 body <nil>" or the like; more is
// the client's environment.
func getAs(t *testing.T, uid uint32, url string, more ...string) string {
	t.Helper()
	// The path through /proc needs no permission on the directories of the binary.
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(more, childURL+"="+url, "GORACE=atexit_sleep_ms=0")
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 65534}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("client with uid %d: %v: %s", uid, err, out)
	}
	return string(out)
}

func TestOtherUsersAreRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can run a client as another user")
	}
	for _, tc := range []struct {
		name  string
		self  uint32
		opts  Options
		uid   uint32
		want  string
		words string
	}{
		{"root to root", 0, Options{}, 0, "200", ""},
		{"root to another", 65533, Options{}, 0, "200", ""},
		{"own user", 65534, Options{}, 65534, "200", ""},
		{"another to root", 0, Options{}, 65534, "403", "uid 65534"},
		{"another to another", 65533, Options{}, 65534, "403", "only for root and"},
		{"any user", 0, Options{AnyUser: true}, 65534, "200", ""},
		// A way through the machine's other addresses is no way around.
		{"allow remote", 0, Options{AllowRemote: true}, 65534, "403", "--insecure-any-user"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, l := range []net.Listener{listen(t, "127.0.0.1:0"), listen(t, "[::1]:0"), listen(t, "0.0.0.0:0")} {
				g := &guard{next: http.NotFoundHandler(), opts: tc.opts, owners: thisProcess()}
				g.next = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
				g.owners.self = tc.self
				srv := &http.Server{Handler: g, ConnContext: ConnContext}
				go srv.Serve(l)
				t.Cleanup(func() { srv.Close() })
				url := "http://" + strings.Replace(l.Addr().String(), "[::]", "127.0.0.1", 1)
				if got := getAs(t, tc.uid, url); !strings.HasPrefix(got, tc.want) || !strings.Contains(got, tc.words) {
					t.Errorf("%s: got %q, want %s with %q", l.Addr(), got, tc.want, tc.words)
				}
				// The kernel does not find a socket that is bound to a device, so it is nobody's.
				want, words := "403", "no process"
				if tc.opts.AnyUser {
					want, words = "200", ""
				}
				if got := getAs(t, tc.uid, url, childDevice+"=lo"); !strings.HasPrefix(got, want) || !strings.Contains(got, words) {
					t.Errorf("%s, bound to lo: got %q, want %s with %q", l.Addr(), got, want, words)
				}
			}
		})
	}
}

// TestSocketStates follows one client socket through its life: only while a
// process holds it does it have an owner. The kernel shows uid 0 for the rest.
func TestSocketStates(t *testing.T) {
	for _, ways := range []struct{ listen, dial string }{
		{"127.0.0.1:0", "tcp4"}, {"[::1]:0", "tcp6"}, {"0.0.0.0:0", "mapped"},
	} {
		t.Run(ways.dial, func(t *testing.T) {
			l := listen(t, ways.listen)
			client, server := connect(t, l, ways.dial)
			here, there := addrPort(server.RemoteAddr()), addrPort(server.LocalAddr())
			is := func(want string) {
				t.Helper()
				of, err := socketOwner(here, there)
				if (err == nil) != (want == "owned") || err == nil && of.uid != uint32(os.Geteuid()) {
					t.Errorf("got %+v, %v, want it %s", of, err, want)
				}
			}
			is("owned")
			if !connAlive(server) {
				t.Error("an open connection is not alive")
			}
			if err := client.CloseWrite(); err != nil { // FIN_WAIT, held
				t.Fatal(err)
			}
			is("owned")
			if _, err := io.ReadAll(server); err != nil {
				t.Fatal(err)
			}
			if !connAlive(server) { // CLOSE_WAIT
				t.Error("a connection that may still be answered is not alive")
			}
			client.Close() // FIN_WAIT2, nobody's
			is("nobody's")
			server.Close() // TIME_WAIT
			is("nobody's")
			if connAlive(server) {
				t.Error("a closed connection is alive")
			}
		})
	}
}

// TestListenerIsNoPeer has a listener on the port of a client that has gone:
// the kernel's lookup falls back to it.
func TestListenerIsNoPeer(t *testing.T) {
	l := listen(t, "127.0.0.1:0")
	self := addrPort(l.Addr())
	if of, err := socketOwner(self, netip.MustParseAddrPort("127.0.0.1:9")); !errors.Is(err, errNoSocket) {
		t.Errorf("got %+v, %v, want errNoSocket", of, err)
	}
}

func TestResetConnectionIsDead(t *testing.T) {
	client, server := connect(t, listen(t, "127.0.0.1:0"), "tcp4")
	if err := client.SetLinger(0); err != nil {
		t.Fatal(err)
	}
	client.Close()
	eventually.True(t, "a reset connection is dead", func() bool { return !connAlive(server) })
}

func FuzzParseDiag(f *testing.F) {
	f.Add(diagRequest(netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2")))
	f.Add(bytes.Repeat([]byte{16, 0, 0, 0}, 30))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseDiag(b); err == nil && !s.local.IsValid() {
			t.Errorf("parseDiag(%x) = %+v", b, s)
		}
	})
}

func listen(t *testing.T, at string) net.Listener {
	t.Helper()
	network := "tcp"
	l, err := net.Listen(network, at)
	if err != nil && strings.HasPrefix(at, "[") {
		t.Skipf("no IPv6 here: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

// connect returns both ends of a connection; "mapped" is an IPv6 socket that
// connects to ::ffff:127.0.0.1.
func connect(t *testing.T, l net.Listener, network string) (client, server *net.TCPConn) {
	t.Helper()
	accepted := make(chan net.Conn, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			close(accepted)
			return
		}
		accepted <- c
	}()
	if network == "mapped" {
		client = dialMapped(t, addrPort(l.Addr()).Port())
	} else {
		c, err := net.Dial(network, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		client = c.(*net.TCPConn)
	}
	c, ok := <-accepted
	if !ok {
		t.Fatal("accepting failed")
	}
	server = c.(*net.TCPConn)
	t.Cleanup(func() { client.Close(); server.Close() })
	return client, server
}

func dialMapped(t *testing.T, port uint16) *net.TCPConn {
	t.Helper()
	fd, err := syscall.Socket(syscall.AF_INET6, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	f := os.NewFile(uintptr(fd), "mapped")
	defer f.Close()
	to := &syscall.SockaddrInet6{Port: int(port), Addr: netip.MustParseAddr("::ffff:127.0.0.1").As16()}
	if err := syscall.Connect(fd, to); err != nil {
		t.Fatal(err)
	}
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	return c.(*net.TCPConn)
}
