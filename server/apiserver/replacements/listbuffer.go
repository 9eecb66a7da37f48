package replacements

import (
	"bufio"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// listBufferSize is how much of a response is written at a time. Upstream encodes a list object by object. Each
// piece passes the writers of all filters, and HTTP/2 sends what its buffer of 4 KB holds as a frame, a TLS record
// and a system call.
const listBufferSize = 64 << 10

var listBuffers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, listBufferSize) }}

// BufferLists makes the server of c write HTTP/2 responses in large pieces.
func BufferLists(c *genericapiserver.Config) {
	build := c.BuildHandlerChainFunc
	c.BuildHandlerChainFunc = func(api http.Handler, c *genericapiserver.Config) http.Handler {
		return build(bufferedLists(api), c)
	}
}

// bufferedLists is the innermost filter: one goroutine calls next and writes what is left, so no other
// filter, such as the one for timeouts, sees a buffer that somebody else still uses.
func bufferedLists(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner, ok := w.(flushingWriter)
		if r.ProtoMajor != 2 || r.Method != http.MethodGet || !ok {
			next.ServeHTTP(w, r)
			return
		}
		buffered := &listWriter{flushingWriter: inner}
		next.ServeHTTP(buffered, r)
		buffered.end() // not after a panic, which ends the stream
	})
}

// A flushingWriter is what upstream's filters require of an HTTP/2 response writer.
type flushingWriter interface {
	http.ResponseWriter
	responsewriter.CloseNotifierFlusher
}

// A listWriter buffers a response. It passes the first piece on immediately, because most responses have only
// one, and everything after a flush, because the handler of a watch or a log decides itself what belongs together.
type listWriter struct {
	flushingWriter
	begun, direct bool
	buffer        *bufio.Writer // nil until the second piece
}

// Write implements http.ResponseWriter.
func (w *listWriter) Write(p []byte) (int, error) {
	if w.direct || !w.begun {
		w.begun = true
		return w.flushingWriter.Write(p)
	}
	if w.buffer == nil {
		w.buffer = listBuffers.Get().(*bufio.Writer)
		w.buffer.Reset(w.flushingWriter)
	}
	return w.buffer.Write(p)
}

// Flush implements http.Flusher.
func (w *listWriter) Flush() {
	w.end()
	w.direct = true
	w.flushingWriter.Flush()
}

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
