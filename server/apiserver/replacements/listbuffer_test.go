package replacements

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

// over serves a handler over HTTP/2 or HTTP/1.1.
func over(t *testing.T, http2 bool, handler http.Handler) (*http.Client, string) {
	t.Helper()
	server := httptest.NewUnstartedServer(handler)
	server.EnableHTTP2 = http2
	server.StartTLS()
	t.Cleanup(server.Close)
	return server.Client(), server.URL
}

// answer returns what a client sees of a response, in one line.
func answer(t *testing.T, client *http.Client, method, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	// A connection that the previous response has ended may still look idle for a moment. A
	// POST that finds this out too late is not sent again.
	client.CloseIdleConnections()
	response, err := client.Do(r)
	if err != nil {
		return "no answer"
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Sprintf("%s %d, cut short", response.Proto, response.StatusCode)
	}
	return fmt.Sprintf("%s %d, length %d, type %q, %d bytes %.40q", response.Proto, response.StatusCode,
		response.ContentLength, response.Header.Get("Content-Type"), len(body), body)
}

// A client sees the same with and without the buffer, except for how much it has seen when a
// response is cut short.
func TestBufferedListsAreTheSame(t *testing.T) {
	object := bytes.Repeat([]byte("object "), 200)
	for name, handler := range map[string]http.HandlerFunc{
		"nothing":     func(http.ResponseWriter, *http.Request) {},
		"a status":    func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) },
		"one piece":   func(w http.ResponseWriter, _ *http.Request) { w.Write([]byte("{}")) },
		"large piece": func(w http.ResponseWriter, _ *http.Request) { w.Write(bytes.Repeat(object, 100)) },
		"two pieces": func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusTeapot)
			w.Write([]byte("one"))
			w.Write([]byte("two"))
		},
		"a list": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			for range 500 {
				if n, err := w.Write(object); n != len(object) || err != nil {
					panic(err)
				}
			}
		},
		"flushed between": func(w http.ResponseWriter, _ *http.Request) {
			for range 3 {
				w.Write(object)
				w.Write(object)
				w.(http.Flusher).Flush()
			}
			w.Write([]byte("the end"))
		},
		"flushed by a controller": func(w http.ResponseWriter, _ *http.Request) {
			w.Write(object)
			w.Write(object)
			if err := http.NewResponseController(w).Flush(); err != nil {
				panic(err)
			}
			w.Write([]byte("the end"))
		},
		"aborted at once": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"aborted later": func(w http.ResponseWriter, _ *http.Request) {
			w.Write(object)
			w.(http.Flusher).Flush()
			w.Write(object)
			panic(http.ErrAbortHandler)
		},
	} {
		for _, http2 := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", name, http2), func(t *testing.T) {
				client, plain := over(t, http2, handler)
				ours, buffered := over(t, http2, bufferedLists(handler))
				for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost} {
					want := answer(t, client, method, plain)
					if got := answer(t, ours, method, buffered); got != want {
						t.Errorf("%s: got %s, want %s", method, got, want)
					}
				}
			})
		}
	}
}

// Everything before a flush has arrived, whatever comes later, and nothing is held back
// afterwards.
func TestBufferedListsFlush(t *testing.T) {
	next := make(chan struct{})
	client, url := over(t, true, bufferedLists(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		buffered, ok := w.(*listWriter)
		if !ok {
			panic(fmt.Sprintf("got a %T", w))
		}
		w.Write([]byte("a"))
		w.Write([]byte("b"))
		w.(http.Flusher).Flush()
		<-next
		w.Write([]byte("c"))
		buffered.flushingWriter.Flush() // the client would not see what is still buffered
		<-next
	})))
	response, err := client.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	for _, want := range []string{"ab", "c"} {
		got := make([]byte, len(want))
		if _, err := io.ReadFull(response.Body, got); err != nil || string(got) != want {
			t.Errorf("got %q, %v, want %q before the handler continues", got, err, want)
		}
		next <- struct{}{}
	}
}

// A countingWriter counts the pieces that are written to it.
type countingWriter struct {
	*httptest.ResponseRecorder
	pieces int
}

func (w *countingWriter) Write(p []byte) (int, error) { w.pieces++; return len(p), nil }

func (w *countingWriter) CloseNotify() <-chan bool { return nil }

func TestListsAreWrittenInLargePieces(t *testing.T) {
	const objects, size = 2000, 1200
	counted := &countingWriter{ResponseRecorder: httptest.NewRecorder()}
	bufferedLists(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for range objects {
			w.Write(make([]byte, size))
		}
	})).ServeHTTP(counted, &http.Request{Method: http.MethodGet, ProtoMajor: 2})
	if most := objects*size/listBufferSize + 2; counted.pieces > most {
		t.Errorf("got %d pieces, want %d at most", counted.pieces, most)
	}
}
