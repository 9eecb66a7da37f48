package idleconns_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"

	"github.com/karve-k8s/karve/server/idleconns"
)

// pipes is a listener in memory, so that time in a synctest bubble passes only when all wait.
type pipes struct {
	accept chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPipes() *pipes { return &pipes{accept: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.accept:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (p *pipes) dial(context.Context, string, string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case p.accept <- server:
		return client, nil
	case <-p.closed:
		return nil, errors.New("refused")
	}
}

// serve serves h on a new listener in memory, tracked or not, and returns its server, the
// listener, and a client that speaks one version of HTTP.
func serve(t testing.TB, major int, track bool, h http.HandlerFunc) (*http.Server, *pipes, *http.Client) {
	t.Helper()
	return serveProtocols(t, true, major, track, h)
}

// serveProtocols is serve, by a server that speaks HTTP/2 or not.
func serveProtocols(t testing.TB, http2 bool, major int, track bool, h http.HandlerFunc) (*http.Server, *pipes, *http.Client) {
	t.Helper()
	p := newPipes()
	s := &http.Server{Handler: h, Protocols: new(http.Protocols)}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(http2)
	var l net.Listener = p
	if track {
		tracking := idleconns.Track(p)
		s.Handler, l = tracking.Handler(h), tracking
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	tr := &http.Transport{DialContext: p.dial, Protocols: new(http.Protocols)}
	tr.Protocols.SetHTTP1(major == 1)
	tr.Protocols.SetUnencryptedHTTP2(major == 2)
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		s.Close()
		<-served
		time.Sleep(idleconns.Patience) // the listener looks once more
	})
	return s, p, &http.Client{Transport: tr}
}

func stop(t *testing.T, s *http.Server) time.Duration {
	t.Helper()
	begin := time.Now()
	if err := s.Shutdown(context.Background()); err != nil {
		t.Error(err)
	}
	return time.Since(begin)
}

// idle begins to speak HTTP/2 on c, and reads everything until the server hangs up. net/http's own
// client would hang up first from Go 1.27 on; others do not.
func idle(t *testing.T, c net.Conn) {
	t.Helper()
	written := make(chan error, 1)
	framer := http2.NewFramer(c, c)
	go func() {
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			written <- err
			return
		}
		written <- framer.WriteSettings()
	}()
	f, err := framer.ReadFrame()
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := f.(*http2.SettingsFrame); !ok {
		t.Fatalf("the first frame is %v, want the settings", f)
	}
	go io.Copy(io.Discard, c)
	if err := <-written; err != nil {
		t.Fatal(err)
	}
	if err := framer.WriteSettingsAck(); err != nil {
		t.Fatal(err)
	}
}

func TestIdleConnectionsEndSooner(t *testing.T) {
	took := func(t *testing.T, track bool) (took time.Duration) {
		synctest.Test(t, func(t *testing.T) {
			s, p, _ := serve(t, 2, track, func(http.ResponseWriter, *http.Request) {})
			c, err := p.dial(t.Context(), "", "")
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			idle(t, c)
			synctest.Wait()
			took = stop(t, s)
		})
		return took
	}
	// If this fails, net/http has become faster by itself, and the package may not be needed.
	if usual := took(t, false); usual < time.Second {
		t.Errorf("without this package, a stop beside an idle connection takes %v, want a second at least", usual)
	}
	// Shutdown looks at most every 500 ms.
	if got, most := took(t, true), idleconns.Patience+500*time.Millisecond; got < idleconns.Patience || got > most {
		t.Errorf("a stop beside an idle connection takes %v, want %v to %v", got, idleconns.Patience, most)
	}
}

// A request that is running when the server stops gets its whole response, also if nothing is
// written for a while.
func TestRequestsAreNotCut(t *testing.T) {
	for _, major := range []int{1, 2} {
		t.Run(fmt.Sprintf("HTTP/%d", major), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := make(chan struct{})
				s, _, client := serve(t, major, true, func(w http.ResponseWriter, r *http.Request) {
					close(begun)
					time.Sleep(20 * idleconns.Patience)
					io.WriteString(w, strings.Repeat("x", 1<<20))
				})
				stopped := make(chan struct{})
				go func() {
					defer close(stopped)
					<-begun
					stop(t, s)
				}()
				resp, err := client.Get("http://server/")
				if err != nil {
					t.Fatal(err)
				}
				if body, err := io.ReadAll(resp.Body); len(body) != 1<<20 || err != nil {
					t.Errorf("got %d bytes, %v", len(body), err)
				}
				<-stopped
			})
		})
	}
}

// A write that waits for the client keeps a connection open, even if its handler has returned.
func TestUnreadResponseIsNotCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, p, _ := serve(t, 1, true, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "done") })
		c, err := p.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n"); err != nil {
			t.Fatal(err)
		}
		synctest.Wait() // nobody reads, so the server waits in Write
		stopped := make(chan struct{})
		go func() {
			defer close(stopped)
			stop(t, s)
		}()
		time.Sleep(10 * idleconns.Patience)
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		if body, err := io.ReadAll(resp.Body); string(body) != "done" || err != nil {
			t.Errorf("got %q, %v", body, err)
		}
		<-stopped
	})
}

func TestLocal(t *testing.T) {
	for address, want := range map[string]bool{"127.0.0.1:1": true, "[::1]:1": true, "127.8.0.1:1": true, "0.0.0.0:1": false, "[::]:1": false, "192.0.2.1:1": false} {
		a, err := net.ResolveTCPAddr("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if got := idleconns.Local(a); got != want {
			t.Errorf("%s: got %v, want %v", address, got, want)
		}
	}
	if !idleconns.Local(&net.UnixAddr{Name: "s", Net: "unix"}) {
		t.Error("a socket in the file system is local")
	}
}

// After CloseAll, no connection is open, and none that is accepted stays open.
func TestCloseAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPipes()
		l := idleconns.Track(p)
		accepted := make(chan error, 2)
		go func() {
			for range 2 {
				_, err := l.Accept()
				accepted <- err
			}
		}()
		first, _ := p.dial(t.Context(), "", "")
		if err := <-accepted; err != nil || l.Count() != 1 {
			t.Fatalf("got %v and %d connections, want one", err, l.Count())
		}
		l.CloseAll()
		second, _ := p.dial(t.Context(), "", "")
		if err := <-accepted; !errors.Is(err, net.ErrClosed) || l.Count() != 0 {
			t.Errorf("got %v and %d connections, want none", err, l.Count())
		}
		for _, c := range []net.Conn{first, second} {
			if _, err := c.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
				t.Errorf("got %v, want the end of the connection", err)
			}
		}
	})
}
