package loopback

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/karve-k8s/karve/internal/fence"
)

// serving is a client of h, and what its server logs.
func serving(t *testing.T, h http.HandlerFunc) (*http.Client, *[]string) {
	t.Helper()
	logged := &[]string{}
	s := NewServer(func(format string, args ...any) { *logged = append(*logged, fmt.Sprintf(format, args...)) })
	t.Cleanup(s.Close)
	s.Serve(h)
	return &http.Client{Transport: &Transport{Server: s}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, logged
}

func request(t *testing.T, ctx context.Context, method string, body io.Reader) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(ctx, method, "https://example.org/a%2Fb/c?d=e&f=%20", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("User-Agent", "test")
	return r
}

// A client can't tell the answers from those that came over HTTP/2.
func TestSameAsHTTP2(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 100_000)
	handlers := map[string]http.HandlerFunc{
		"nothing":      func(http.ResponseWriter, *http.Request) {},
		"status":       func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) },
		"text":         func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") },
		"empty write":  func(w http.ResponseWriter, _ *http.Request) { w.Write(nil) },
		"html":         func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "<html>") },
		"not found":    http.NotFound,
		"redirect":     func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, "/elsewhere", http.StatusFound) },
		"no content":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"not modified": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotModified) },
		"a body too many": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(204)
			_, err := w.Write([]byte("x"))
			mustBe(err, http.ErrBodyNotAllowed)
		},
		"early hints": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			io.WriteString(w, "x")
		},
		"two statuses": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); w.WriteHeader(202) },
		"too late":     func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(201); w.Header().Set("X-Late", "1") },
		"declared": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "5")
			io.WriteString(w, "hello")
		},
		"declared short": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "9")
			io.WriteString(w, "hello")
		},
		"flushed":         func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush(); io.WriteString(w, "hello") },
		"write and flush": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello"); w.(http.Flusher).Flush() },
		"big":             func(w http.ResponseWriter, _ *http.Request) { w.Write(big) },
		"big in pieces": func(w http.ResponseWriter, _ *http.Request) {
			for piece := range slices.Chunk(big, 1000) {
				w.Write(piece)
			}
		},
		"big and uneven": func(w http.ResponseWriter, _ *http.Request) {
			w.Write(big[:7])
			w.Write(big[:bufferSize])
			w.Write(big[:bufferSize-1])
			w.Write(big[:3])
		},
		"panic": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"panic after data": func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, "hello")
			w.(http.Flusher).Flush()
			time.Sleep(time.Millisecond)
			panic(http.ErrAbortHandler)
		},
		"request":     func(w http.ResponseWriter, r *http.Request) { describe(w, r) },
		"body unread": func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "hello") },
	}
	for name, h := range handlers {
		t.Run(name, func(t *testing.T) {
			over := httptest.NewUnstartedServer(h)
			over.EnableHTTP2 = true
			over.Config.ErrorLog = nil
			over.StartTLS()
			defer over.Close()
			client, _ := serving(t, h)
			through := over.Client()
			through.CheckRedirect = client.CheckRedirect
			for _, method := range []string{"GET", "HEAD", "POST"} {
				var content string
				if method == "POST" {
					content = "the body"
				}
				want := exchange(t, through, over.URL, method, content)
				if got := exchange(t, client, over.URL, method, content); got != want {
					t.Errorf("%s: got\n%s\nwant\n%s", method, got, want)
				}
			}
		})
	}
}

func mustBe(got, want error) {
	if got != want {
		panic(fmt.Sprintf("got %v, want %v", got, want))
	}
}

// describe answers with all that a handler may look at.
func describe(w io.Writer, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	fmt.Fprintf(w, "%s %s %s %s %s %d %s %v\n", r.Method, r.URL, r.URL.Path, r.RequestURI, r.Proto, r.ContentLength, body, err)
	fmt.Fprintf(w, "%v %v %v\n", r.TLS.HandshakeComplete, r.TLS.PeerCertificates, r.TLS.NegotiatedProtocol)
	for name, values := range r.Header {
		if name == "Content-Length" || name == "Accept-Encoding" { // of the framing, and the transport's own
			continue
		}
		fmt.Fprintln(w, name, values)
	}
	_, err = r.Body.Read(make([]byte, 1))
	fmt.Fprintln(w, err, r.Context().Err())
}

// exchange is one request, and everything that a client can see of the answer.
func exchange(t *testing.T, c *http.Client, base, method, content string) string {
	t.Helper()
	var body io.Reader
	if content != "" {
		body = strings.NewReader(content)
	}
	r := request(t, t.Context(), method, body)
	r.URL.Host = strings.TrimPrefix(base, "https://")
	answer, err := c.Do(r)
	if err != nil {
		return "no answer"
	}
	defer answer.Body.Close()
	got, err := io.ReadAll(answer.Body)
	length := answer.ContentLength
	if _, ok := answer.Header["Content-Length"]; !ok && length == int64(len(got)) {
		length = -1 // HTTP/2 tells an answer that is empty by its frame, and does not say so of others
	}
	if answer.Header.Get("Date") == "" {
		t.Errorf("no Date")
	}
	answer.Header.Del("Date")
	if length > 2048 || len(got) > 2048 { // where a buffer ends is the server's business
		length = -1
		answer.Header.Del("Content-Length")
	}
	return fmt.Sprintf("%s %s %v %d, %d bytes %.300q, failed: %v", answer.Proto, answer.Status, answer.Header, length, len(got), got, err != nil)
}

// Headers and parts arrive when they are flushed, in both directions at once.
func TestStreaming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, _ := serving(t, func(w http.ResponseWriter, r *http.Request) {
			w.(http.Flusher).Flush()
			buffer := make([]byte, 100)
			for {
				n, err := r.Body.Read(buffer)
				if err != nil {
					return
				}
				fmt.Fprintf(w, "got ")
				w.Write(buffer[:n])
				w.(http.Flusher).Flush()
			}
		})
		from, to := io.Pipe()
		answer, err := client.Do(request(t, t.Context(), "POST", from))
		if err != nil {
			t.Fatal(err)
		}
		buffer := make([]byte, 100)
		for _, part := range []string{"one", "two", "three"} {
			io.WriteString(to, part)
			n, err := answer.Body.Read(buffer)
			if got, want := string(buffer[:n]), "got "+part; got != want || err != nil {
				t.Errorf("got %q and error %v, want %q", got, err, want)
			}
		}
		to.Close()
		if rest, err := io.ReadAll(answer.Body); len(rest) > 0 || err != nil {
			t.Errorf("got %q and error %v, want the end", rest, err)
		}
	})
}

// Whoever ends first, the other's end is not far: synctest fails a test that
// leaves a goroutine behind.
func TestCancellation(t *testing.T) {
	block := func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
	stream := func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	}
	fill := func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 1000)); err != nil {
				return
			}
		}
	}
	lend := func(w http.ResponseWriter, r *http.Request) {
		if n, err := w.Write(make([]byte, 1<<20)); err == nil || n == 1<<20 {
			panic("written")
		}
	}
	read := func(w http.ResponseWriter, r *http.Request) {
		w.(http.Flusher).Flush()
		io.Copy(io.Discard, r.Body)
	}
	for name, h := range map[string]http.HandlerFunc{"before the answer": block, "in the answer": stream, "at a full buffer": fill, "in a large write": lend, "reading the request": read} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				body, _ := io.Pipe()
				client, logged := serving(t, h)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if name == "before the answer" {
					go func() { time.Sleep(time.Second); cancel() }()
				}
				answer, err := client.Do(request(t, ctx, "POST", body))
				if name == "before the answer" {
					if !errors.Is(err, context.Canceled) {
						t.Errorf("got %v, want %v", err, context.Canceled)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				cancel()
				synctest.Wait()
				if _, err := io.Copy(io.Discard, answer.Body); !errors.Is(err, context.Canceled) {
					t.Errorf("the body: got %v, want %v", err, context.Canceled)
				}
				answer, err = client.Do(request(t, t.Context(), "POST", body))
				if err != nil {
					t.Fatal(err)
				}
				answer.Body.Close()
				if _, err := answer.Body.Read(make([]byte, 1)); err == nil {
					t.Error("a closed body can be read")
				}
				synctest.Wait()
				if len(*logged) > 0 {
					t.Error(*logged)
				}
			})
		})
	}
}

// The handler sees the fence of the request, and no other value of its context.
func TestFence(t *testing.T) {
	type key struct{}
	over := errors.New("over")
	client, _ := serving(t, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), time.Minute)
		defer cancel()
		fmt.Fprint(w, fence.Check(ctx), r.Context().Value(key{}))
	})
	for want, ctx := range map[string]context.Context{
		"<nil> <nil>": t.Context(),
		"over <nil>":  context.WithValue(fence.With(t.Context(), func() (time.Duration, error) { return time.Minute, over }), key{}, "secret"),
	} {
		answer, err := client.Do(request(t, ctx, "GET", nil))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := io.ReadAll(answer.Body); string(got) != want || err != nil {
			t.Errorf("got %q, %v, want %q", got, err, want)
		}
		answer.Body.Close()
	}
}

// Requests wait for the handler, and are refused and broken off at the end.
func TestServeAndClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer(t.Logf)
		stubborn := make(chan struct{})
		client := &http.Client{Transport: &Transport{Server: s}}
		hurried, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := client.Do(request(t, hurried, "GET", nil)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before there is a handler: got %v, want %v", err, context.DeadlineExceeded)
		}
		go func() {
			time.Sleep(time.Minute)
			s.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.(http.Flusher).Flush()
				<-r.Context().Done()
				<-stubborn
			}))
		}()
		answer, err := client.Do(request(t, t.Context(), "GET", nil))
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Second, s.Close)
		if _, err := io.ReadAll(answer.Body); err != io.ErrUnexpectedEOF {
			t.Errorf("under way: got %v, want %v", err, io.ErrUnexpectedEOF)
		}
		if _, err := client.Do(request(t, t.Context(), "GET", nil)); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("afterwards: got %v, want %v", err, syscall.ECONNREFUSED)
		}
		close(stubborn)
	})
}

type key struct{}

// Who a client is comes from its certificates, and nothing of the context that
// it asks in reaches the handler.
func TestIdentity(t *testing.T) {
	leaf := &x509.Certificate{Raw: []byte("leaf")}
	var failure error
	s := NewServer(t.Logf)
	defer s.Close()
	s.Serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got := r.TLS.PeerCertificates; len(got) != 1 || got[0] != leaf {
			t.Errorf("certificates: got %v", got)
		}
		if v := r.Context().Value(key{}); v != nil {
			t.Errorf("the client's context: got %v in the handler's", v)
		}
	}))
	client := &http.Client{Transport: &Transport{Server: s, Certificates: func() ([]*x509.Certificate, error) { return []*x509.Certificate{leaf}, failure }}}
	ctx := context.WithValue(t.Context(), key{}, "client")
	if _, err := client.Do(request(t, ctx, "GET", nil)); err != nil {
		t.Fatal(err)
	}
	failure = errors.New("no certificate")
	if _, err := client.Do(request(t, ctx, "GET", nil)); !errors.Is(err, failure) {
		t.Errorf("got %v, want %v", err, failure)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestUpgrade(t *testing.T) {
	client, _ := serving(t, func(http.ResponseWriter, *http.Request) { t.Error("got an upgrade") })
	r := request(t, t.Context(), "POST", nil)
	r.Header.Set("Connection", "Upgrade")
	r.Header.Set("Upgrade", "SPDY/3.1")
	if _, err := client.Do(r); !errors.Is(err, ErrUpgrade) {
		t.Errorf("got %v, want %v", err, ErrUpgrade)
	}
	elsewhere := errors.New("elsewhere")
	client.Transport.(*Transport).Upgrade = roundTripper(func(*http.Request) (*http.Response, error) { return nil, elsewhere })
	if _, err := client.Do(r); !errors.Is(err, elsewhere) {
		t.Errorf("got %v, want %v", err, elsewhere)
	}
}

// What is left of a buffer is not another answer's.
func TestBuffersAreNotShared(t *testing.T) {
	client, _ := serving(t, func(w http.ResponseWriter, r *http.Request) {
		b := r.URL.Query().Get("b")
		for range 50 {
			io.WriteString(w, strings.Repeat(b, 777))
			w.(http.Flusher).Flush()
		}
	})
	done := make(chan error)
	for i := range 20 {
		go func() {
			b := string(rune('a' + i))
			answer, err := client.Get("https://x/?b=" + b)
			if err != nil {
				done <- err
				return
			}
			defer answer.Body.Close()
			got, err := io.ReadAll(io.LimitReader(answer.Body, int64(2000*i))) // some are abandoned
			if rest := strings.Trim(string(got), b); rest != "" {
				err = fmt.Errorf("%s: got %q as well", b, rest)
			}
			done <- err
		}()
	}
	for range 20 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}
