package replacements

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"

	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server/ports"
)

// A stop cuts off clients that stand still, whatever keeps the data, and names them. It waits for those that read, and for handlers.
func TestAwait(t *testing.T) {
	s := &OpenRequests{}
	s.ending, s.end = context.WithCancel(t.Context())
	s.requests = requests{open: map[*openRequest]struct{}{}, none: make(chan struct{})}
	more, ended := make(chan struct{}), make(chan string, 10)
	server := httptest.NewUnstartedServer(s.note(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- r.URL.Path }()
		_, err := io.Copy(io.Discard, r.Body)
		for what := make([]byte, 1<<20); err == nil && strings.HasPrefix(r.URL.Path, "/still"); {
			_, err = w.Write(what)
		}
		w.(http.Flusher).Flush()
		if err == nil {
			<-more
			io.WriteString(w, "more")
		}
	})))
	server.Listener, server.EnableHTTP2 = ports.Track(server.Listener), true
	server.StartTLS()
	t.Cleanup(server.Close)
	client := func(http2 bool) *http.Client {
		transport := server.Client().Transport.(*http.Transport).Clone()
		transport.TLSClientConfig.NextProtos, transport.Protocols = nil, new(http.Protocols)
		transport.Protocols.SetHTTP1(!http2)
		transport.Protocols.SetHTTP2(http2)
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	answers := make(chan *http.Response, 10)
	begin := func(c *http.Client, path string, body io.Reader) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+path, body)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("User-Agent", "client of "+path)
		go func() {
			if answer, err := c.Do(r); err == nil {
				answers <- answer
			}
		}()
	}
	stalled, never := io.Pipe()
	t.Cleanup(func() { never.Close() })
	begin(client(false), "/still/1", nil)
	begin(client(true), "/still/2", nil)
	begin(client(true), "/still/upload", stalled)
	begin(client(true), "/handler", nil)
	eventually.True(t, "the requests are in flight", func() bool { s.requests.mu.Lock(); defer s.requests.mu.Unlock(); return len(s.requests.open) == 4 })

	logger, log := logtest.NewNullLogger()
	logged := func(what string) bool {
		return slices.ContainsFunc(log.AllEntries(), func(e *logrus.Entry) bool { return strings.Contains(e.Message, what) })
	}
	ctx, done := context.WithCancel(t.Context())
	awaited := make(chan struct{})
	go func() { s.Await(ctx, 50*time.Millisecond, logger); close(awaited) }()
	for range 3 {
		if path := eventually.Receive(t, "the end of a request", ended); path == "/handler" {
			t.Error("the stop has not waited for a handler")
		}
	}
	for _, path := range []string{"/still/1", "/still/2", "/still/upload", "/handler"} {
		what := fmt.Sprintf(`POST %q of 127.0.0.1:`, path)
		eventually.True(t, "the log has "+what, func() bool { return logged(what) && logged(`("client of `+path+`")`) })
	}
	close(more)
	eventually.Receive(t, "the end of the handler", ended)
	done()
	<-awaited
	s.end()
	eventually.Receive(t, "no request", s.requests.close())
}
