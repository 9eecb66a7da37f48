package insecure

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/internal/eventually"
)

// start serves h until the returned stop is called, which returns Serve's error.
func start(t *testing.T, h http.Handler, opts Options) (addr string, stop func() error) {
	t.Helper()
	before := runtime.NumGoroutine()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, h, opts) }()
	var result error
	stopped := false
	stop = func() error {
		if !stopped {
			cancel()
			result = eventually.Receive(t, "Serve returns", done)
			stopped = true
		}
		return result
	}
	t.Cleanup(func() {
		_ = stop()
		client.CloseIdleConnections()
		eventually.Goroutines(t, before)
	})
	return l.Addr().String(), stop
}

// client is a client in the server's process.
var client = &http.Client{Transport: &http.Transport{DialContext: Dial}}

func proto(w http.ResponseWriter, r *http.Request) {
	fmt.Fprint(w, r.Proto, " ", r.Header.Get("Upgrade"))
}

func h2Client(t *testing.T) *http.Client {
	tr := &http.Transport{Protocols: new(http.Protocols), DialContext: Dial}
	tr.Protocols.SetUnencryptedHTTP2(true)
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

func get(t *testing.T, c *http.Client, url string) (int, string) {
	t.Helper()
	resp, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

func TestServeBothProtocols(t *testing.T) {
	addr, stop := start(t, http.HandlerFunc(proto), Options{ShutdownTimeout: 10 * time.Second})
	if code, body := get(t, client, "http://"+addr); code != 200 || body != "HTTP/1.1 " {
		t.Errorf("HTTP/1.1: got %d %q", code, body)
	}
	c := h2Client(t)
	if code, body := get(t, c, "http://"+addr); code != 200 || body != "HTTP/2.0 " {
		t.Errorf("prior knowledge: got %d %q", code, body)
	}
	// The guard sees every HTTP/2 request too.
	req, _ := http.NewRequest("GET", "http://"+addr, nil)
	req.Host = "evil.example"
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != 403 {
		t.Errorf("HTTP/2 with a foreign authority: got %d, want 403", resp.StatusCode)
	}
	if err := stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

func TestDisableHTTP2(t *testing.T) {
	addr, _ := start(t, http.HandlerFunc(proto), Options{DisableHTTP2: true, ShutdownTimeout: time.Second})
	if code, body := get(t, client, "http://"+addr); code != 200 || body != "HTTP/1.1 " {
		t.Errorf("HTTP/1.1: got %d %q", code, body)
	}
	if resp, err := h2Client(t).Get("http://" + addr); err == nil {
		resp.Body.Close()
		t.Error("HTTP/2 was served")
	}
}

// streaming writes a line, waits for more, and writes another.
func streaming(more <-chan struct{}) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "one\n")
		w.(http.Flusher).Flush()
		select {
		case <-more:
			io.WriteString(w, "two\n")
		case <-r.Context().Done():
		}
	})
}

func TestShutdownDrains(t *testing.T) {
	for name, client := range map[string]*http.Client{"HTTP/1.1": {Transport: &http.Transport{DialContext: Dial}}, "HTTP/2": h2Client(t)} {
		t.Run(name, func(t *testing.T) {
			more := make(chan struct{})
			addr, stop := start(t, streaming(more), Options{ShutdownTimeout: 20 * time.Second})
			resp, err := client.Get("http://" + addr)
			if err != nil {
				t.Fatal(err)
			}
			defer resp.Body.Close()
			r := bufio.NewReader(resp.Body)
			if line, err := r.ReadString('\n'); line != "one\n" {
				t.Fatal(line, err)
			}
			stopped := make(chan error, 1)
			go func() { stopped <- stop() }()
			refused(t, addr)
			select {
			case err := <-stopped:
				t.Fatalf("Serve returned (%v) with a request in flight", err)
			default:
			}
			close(more)
			if rest, err := io.ReadAll(r); string(rest) != "two\n" || err != nil {
				t.Errorf("the rest: got %q, %v", rest, err)
			}
			client.CloseIdleConnections()
			if err := <-stopped; err != nil {
				t.Error(err)
			}
		})
	}
}

// TestHijack is what exec does: the connection is the handler's from then on.
func TestHijack(t *testing.T) {
	hijacked := make(chan struct{})
	addr, stop := start(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		close(hijacked)
		io.Copy(c, rw)
	}), Options{ShutdownTimeout: 20 * time.Second})
	c, err := Dial(t.Context(), "tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(20 * time.Second))
	io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
	<-hijacked
	io.WriteString(c, "hello\n")
	r := bufio.NewReader(c)
	for {
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if line == "hello\n" {
			break
		}
	}
	begun := time.Now()
	if err := stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 10*time.Second {
		t.Errorf("stopping took %v: it waited for a hijacked connection", took)
	}
	if _, err := r.ReadByte(); err == nil {
		t.Error("the hijacked connection is still open")
	}
}

func TestHostlessAndStar(t *testing.T) {
	addr, _ := start(t, http.HandlerFunc(proto), Options{ShutdownTimeout: time.Second})
	for request, want := range map[string]string{
		"GET / HTTP/1.0\r\n\r\n":                                            "HTTP/1.0 200",
		"GET / HTTP/1.1\r\n\r\n":                                            "HTTP/1.1 400",
		"GET / HTTP/1.1\r\nHost: a\r\nHost: localhost\r\n\r\n":              "HTTP/1.1 400",
		"OPTIONS * HTTP/1.1\r\nHost: evil.example\r\n\r\n":                  "HTTP/1.1 403",
		"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n\r\n":                     "HTTP/1.1 200",
		"GET http://evil.example/ HTTP/1.1\r\nHost: localhost\r\n\r\n":      "HTTP/1.1 403",
		"CONNECT evil.example:443 HTTP/1.1\r\nHost: localhost:8080\r\n\r\n": "HTTP/1.1 403",
	} {
		c, err := Dial(t.Context(), "tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c.SetDeadline(time.Now().Add(20 * time.Second))
		io.WriteString(c, request)
		line, err := bufio.NewReader(c).ReadString('\n')
		c.Close()
		if !strings.HasPrefix(line, want) {
			t.Errorf("%q: got %q, %v, want %s", request, line, err, want)
		}
	}
}

// refused waits until nothing listens on addr any more.
func refused(t *testing.T, addr string) {
	t.Helper()
	eventually.True(t, "connections are refused", func() bool {
		c, err := Dial(t.Context(), "tcp", addr)
		if err != nil {
			return true
		}
		c.Close()
		return false
	})
}
