package replacements

import (
	"bufio"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// listBufferSize is how much of a response is written at a time. Upstream encodes a list
// object by object, and HTTP/2 has a buffer of 4 KB. Each bufferful crosses two goroutines,
// and is a frame, a TLS record and a system call.
const listBufferSize = 64 << 10

var listBuffers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, listBufferSize) }}

// BufferLists changes a chain so that it writes HTTP/2 responses in large pieces.
func BufferLists(c *genericapiserver.Config) {
	putInFront(c, bufferedLists)
}

// bufferedLists must come before the timeout filter. When that filter has returned, no handler
// writes any more, so nothing else uses the buffer.
func bufferedLists(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		notifier, ok := w.(closeNotifyingFlusher)
		if r.ProtoMajor != 2 || r.Method != http.MethodGet || !ok {
			next.ServeHTTP(w, r)
			return
		}
		wide := &listWriter{closeNotifyingFlusher: notifier}
		next.ServeHTTP(wide, r)
		wide.end() // not after a panic, which ends the stream
	})
}

// A closeNotifyingFlusher is what upstream's filters require of an HTTP/2 response writer.
type closeNotifyingFlusher interface {
	http.ResponseWriter
	responsewriter.CloseNotifierFlusher
}

// A listWriter buffers a response. It passes the first piece on immediately, because most
// responses have only one. It also passes on everything after the handler has flushed: the
// handler of a watch or a log decides itself what belongs together.
type listWriter struct {
	closeNotifyingFlusher
	direct bool
	begun  bool
	buffer *bufio.Writer // nil until the second piece
}

// Write implements http.ResponseWriter.
func (w *listWriter) Write(p []byte) (int, error) {
	if w.direct || !w.begun {
		w.begun = true
		return w.closeNotifyingFlusher.Write(p)
	}
	if w.buffer == nil {
		w.buffer = listBuffers.Get().(*bufio.Writer)
		w.buffer.Reset(w.closeNotifyingFlusher)
	}
	return w.buffer.Write(p)
}

// Flush implements http.Flusher.
func (w *listWriter) Flush() {
	w.end()
	w.direct = true
	w.closeNotifyingFlusher.Flush()
}

// Unwrap lets http.ResponseController find the original writer.
func (w *listWriter) Unwrap() http.ResponseWriter { return w.closeNotifyingFlusher }

// end writes what is left in the buffer.
func (w *listWriter) end() {
	if w.buffer == nil {
		return
	}
	_ = w.buffer.Flush() // an error means that the client has disconnected; the next write fails, too
	w.buffer.Reset(nil)
	listBuffers.Put(w.buffer)
	w.buffer = nil
}
