package idleconns_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/karve-k8s/karve/server/idleconns"
)

// The last part of a response that waits for the client's flow control keeps a connection open, even if
// its handler has returned. The server sends that part when the handler has returned, and nothing waits
// in Write.
func TestUnreadStreamIsNotCut(t *testing.T) {
	const size, window = 4000, 1000 // less than the server's buffer
	synctest.Test(t, func(t *testing.T) {
		s, p, _ := serve(t, 2, true, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, strings.Repeat("x", size)) })
		c, err := p.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		framer := http2.NewFramer(c, c)
		written := make(chan error, 1)
		go func() { written <- request(c, framer, window) }()
		got, length, stopped := 0, "", make(chan struct{})
		for ended := false; !ended; {
			f, err := framer.ReadFrame()
			if err != nil {
				t.Fatalf("after %d bytes of %d: %v", got, size, err)
			}
			switch f := f.(type) {
			case *http2.HeadersFrame:
				fields, err := hpack.NewDecoder(4096, nil).DecodeFull(f.HeaderBlockFragment())
				if err != nil {
					t.Fatal(err)
				}
				for _, field := range fields {
					if field.Name == "content-length" {
						length = field.Value
					}
				}
			case *http2.DataFrame:
				got, ended = got+len(f.Data()), f.StreamEnded()
				if got == window {
					go func() {
						defer close(stopped)
						stop(t, s)
					}()
					go func() {
						time.Sleep(10 * idleconns.Patience)
						if err := framer.WriteWindowUpdate(1, size); err != nil {
							t.Error(err)
						}
					}()
				}
			}
		}
		if got != size || length != fmt.Sprint(size) {
			t.Errorf("got %d bytes and Content-Length %q, want %d", got, length, size)
		}
		if err := <-written; err != nil {
			t.Error(err)
		}
		go io.Copy(io.Discard, c)
		<-stopped
	})
}

// request begins to speak HTTP/2 with a window for streams, and sends a request.
func request(c net.Conn, framer *http2.Framer, window uint32) error {
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		return err
	}
	if err := framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: window}); err != nil {
		return err
	}
	var block bytes.Buffer
	encoder := hpack.NewEncoder(&block)
	for _, field := range []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":authority", Value: "server"}, {Name: ":path", Value: "/"}} {
		if err := encoder.WriteField(field); err != nil {
			return err
		}
	}
	return framer.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true})
}

// A handler that panics, or whose client has gone, does not count for ever: the stop would wait for it.
func TestAbortedRequestsEnd(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"panic": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"gone":  func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
		//lint:ignore SA1019 a handler that still uses it must not be disturbed
		"notice": func(w http.ResponseWriter, _ *http.Request) { <-w.(http.CloseNotifier).CloseNotify() },
		"status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, p, client := serve(t, 2, true, h)
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://server/", nil)
				if resp, err := client.Do(r); err == nil {
					resp.Body.Close()
				}
				c, err := p.dial(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				idle(t, c)
				synctest.Wait()
				if got, most := stop(t, s), idleconns.Patience+500*time.Millisecond; got > most {
					t.Errorf("the stop takes %v, want %v at most", got, most)
				}
			})
		})
	}
}

// A server without HTTP/2 gives the preface of HTTP/2 to the handler, as a request of HTTP/2.0. It ends
// with the handler, and delays no stop.
func TestPrefaceWithoutHTTP2Ends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		handled := false
		s, p, _ := serveProtocols(t, false, 1, true, func(_ http.ResponseWriter, r *http.Request) { handled = r.ProtoMajor == 2 })
		c, err := p.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		go io.Copy(io.Discard, c)
		if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
			t.Log(err) // the server may hang up before it has read all
		}
		other, err := p.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		synctest.Wait()
		if !handled {
			t.Fatal("the preface did not reach the handler, so this test shows nothing")
		}
		stop(t, s)
		time.Sleep(2 * idleconns.Patience)
		if _, err := other.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
			t.Errorf("got %v, want the end of the connection", err)
		}
	})
}

func BenchmarkHandler(b *testing.B) {
	for _, track := range []bool{false, true} {
		b.Run(fmt.Sprint("track=", track), func(b *testing.B) {
			_, _, client := serve(b, 2, track, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") })
			for b.Loop() {
				resp, err := client.Get("http://server/")
				if err != nil {
					b.Fatal(err)
				}
				io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
		})
	}
}
