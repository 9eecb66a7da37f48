package insecure

import (
	"bytes"
	"encoding/binary"
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
				g := &guard{next: http.NotFoundHandler(), opts: tc.opts.withDefaults(), owners: thisProcess()}
				g.next = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
				g.owners.self = tc.self
				srv := &http.Server{Handler: g, ConnContext: ConnContext}
				go srv.Serve(l)
				t.Cleanup(func() { srv.Close() })
				for _, device := range []string{"", "lo"} {
					got := getAs(t, tc.uid, "http://"+strings.Replace(l.Addr().String(), "[::]", "127.0.0.1", 1), childDevice+"="+device)
					if !strings.HasPrefix(got, tc.want) || !strings.Contains(got, tc.words) {
						t.Errorf("%s, device %q: got %q, want %s with %q", l.Addr(), device, got, tc.want, tc.words)
					}
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
			both := func(want string) {
				t.Helper()
				for name, find := range map[string]func(_, _ netip.AddrPort) (tcpSocket, error){"sock_diag": diagSocket, "/proc/net": procSocket} {
					s, err := find(here, there)
					got := "owned"
					if err != nil || !s.owned() {
						got = "nobody's"
					}
					if got != want || (got == "owned" && s.uid != uint32(os.Geteuid())) {
						t.Errorf("%s: got %s (%+v, %v), want %s", name, got, s, err, want)
					}
				}
				if _, err := socketOwner(here, there); (err == nil) != (want == "owned") {
					t.Errorf("socketOwner: got %v, want %s", err, want)
				}
			}
			both("owned")
			if !connAlive(server) {
				t.Error("an open connection is not alive")
			}
			if err := client.CloseWrite(); err != nil { // FIN_WAIT, held
				t.Fatal(err)
			}
			both("owned")
			if _, err := io.ReadAll(server); err != nil {
				t.Fatal(err)
			}
			if !connAlive(server) { // CLOSE_WAIT
				t.Error("a connection that may still be answered is not alive")
			}
			client.Close() // FIN_WAIT2, nobody's
			both("nobody's")
			server.Close() // TIME_WAIT
			both("nobody's")
			if connAlive(server) {
				t.Error("a closed connection is alive")
			}
		})
	}
}

// TestDiagLookups has the kernel replaced: which lookups are made, and which error
// leads to /proc/net.
func TestDiagLookups(t *testing.T) {
	client, server := netip.MustParseAddrPort("127.0.0.1:9"), netip.MustParseAddrPort("127.0.0.1:8080")
	listener := tcpSocket{local: server}
	full := errors.New("full")
	for _, tc := range []struct {
		name      string
		bound     uint32 // the client's device; 99: there is no client
		own       error  // the answer for the server's end
		deviceErr error  // instead of the interfaces
		fails     error  // the first lookup's
		want      error
		missing   bool
	}{
		{name: "not bound"},
		{name: "bound to lo", bound: 1},
		{name: "bound to another", bound: 2},
		{name: "no client", bound: 99, want: errNoSocket},
		{name: "no tcp_diag", bound: 99, own: errNoSocket, want: errNoDiag, missing: true},
		{name: "no sock_diag", fails: syscall.EPROTONOSUPPORT, want: syscall.EPROTONOSUPPORT, missing: true},
		{name: "no files", fails: syscall.EMFILE, want: syscall.EMFILE},
		{name: "no files for the server's end", bound: 1, own: syscall.EMFILE, want: syscall.EMFILE},
		{name: "no interfaces", bound: 1, deviceErr: full},
	} {
		s, err := findDiag(client, server, func() ([]uint32, error) { return []uint32{1, 2}, tc.deviceErr },
			func(local, remote netip.AddrPort, device uint32) (tcpSocket, error) {
				switch {
				case local == server:
					return listener, tc.own
				case tc.fails != nil:
					return tcpSocket{}, tc.fails
				case device == tc.bound:
					return tcpSocket{local: local, remote: remote, inode: 5}, nil
				}
				return tcpSocket{}, errNoSocket
			})
		if tc.deviceErr != nil {
			if err == nil || !strings.Contains(err.Error(), "full") || diagMissing(err) {
				t.Errorf("%s: got %+v, %v, want a failure", tc.name, s, err)
			}
			continue
		}
		if !errors.Is(err, tc.want) || diagMissing(err) != tc.missing || (err == nil && s.inode != 5) {
			t.Errorf("%s: got %+v, %v, missing %v, want %v, missing %v", tc.name, s, err, diagMissing(err), tc.want, tc.missing)
		}
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

func TestProcLines(t *testing.T) {
	const file = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 12 1 0
   1: 0100007F:C000 0100007F:1F90 06 00000000:00000000 03:00001000 00000000     0        0 0 3 0
   2: 0100007F:C000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 77 1 0
nonsense
`
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the example is of a little-endian machine")
	}
	s, err := findProc(strings.NewReader(file), netip.MustParseAddrPort("127.0.0.1:49152"), netip.MustParseAddrPort("127.0.0.1:8080"))
	if err != nil || !s.owned() || s.uid != 1000 || s.inode != 77 {
		t.Errorf("got %+v, %v, want uid 1000, inode 77", s, err)
	}
}

func FuzzParseDiag(f *testing.F) {
	f.Add(diagRequest(netip.MustParseAddrPort("127.0.0.1:1"), netip.MustParseAddrPort("127.0.0.1:2"), 0))
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
