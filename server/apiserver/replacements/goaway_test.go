package replacements

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"golang.org/x/net/http2"
)

// A server that shuts down keeps an idle HTTP/2 connection open for a second, and for less if
// all clients are on this machine.
func TestGoAway(t *testing.T) {
	if goAwayTimeout != time.Second {
		t.Fatalf("the variable of golang.org/x/net/http2 is %v, want a second: is it another one now?", goAwayTimeout)
	}
	defer func(before time.Duration) { goAwayTimeout = before }(goAwayTimeout)
	stop := func() time.Duration {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		if err := http2.ConfigureServer(s.Config, nil); err != nil {
			t.Fatal(err)
		}
		s.TLS = s.Config.TLSConfig
		s.EnableHTTP2 = true
		s.StartTLS()
		defer s.Close()
		resp, err := s.Client().Get(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.ProtoMajor != 2 {
			t.Fatalf("the client speaks %s", resp.Proto)
		}
		began := time.Now()
		if err := s.Config.Shutdown(t.Context()); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	usual := stop()
	ShortenGoodbyes()
	if short := stop(); short >= usual {
		t.Errorf("a stop takes %v, and as it is usually %v", short, usual)
	}
}
