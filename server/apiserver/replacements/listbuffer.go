package replacements

import (
	"bufio"
	"net/http"
	"sync"

	"k8s.io/apiserver/pkg/endpoints/responsewriter"
	genericapiserver "k8s.io/apiserver/pkg/server"
)

// listBufferSize is how much of an answer is passed on at a time. A list is encoded
// object by object, and HTTP/2 has a buffer of 4 KB, each of which crosses two
// goroutines, is a frame, a TLS record and a system call.
const listBufferSize = 64 << 10

var listBuffers = sync.Pool{New: func() any { return bufio.NewWriterSize(nil, listBufferSize) }}

// BufferLists changes a chain so that answers over HTTP/2 are written in large
// pieces.
func BufferLists(c *genericapiserver.Config) {
	putInFront(c, bufferedLists)
}

// bufferedLists comes before the filter of timeouts: nothing is written any more when
// that has returned, so the buffer is nobody else's then.
func bufferedLists(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		notifier, ok := w.(closeNotifyingFlusher)
		if r.ProtoMajor != 2 || r.Method != http.MethodGet || !ok {
			next.ServeHTTP(w, r)
			return
		}
		wide := &listWriter{closeNotifyingFlusher: notifier}
		next.ServeHTTP(wide, r)
		wide.end() // not after a panic: that ends the stream
	})
}

// A closeNotifyingFlusher is what upstream's filters ask of an answer over HTTP/2.
type closeNotifyingFlusher interface {
	http.ResponseWriter
	responsewriter.CloseNotifierFlusher
}

// A listWriter is an answer. Its first piece is passed on at once: most are
// that one. So is everything once the handler has flushed: such a handler, of a
// watch or a log, knows itself what belongs together.
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

// Unwrap is for http.ResponseController.
func (w *listWriter) Unwrap() http.ResponseWriter { return w.closeNotifyingFlusher }

// end passes on what has gathered.
func (w *listWriter) end() {
	if w.buffer == nil {
		return
	}
	_ = w.buffer.Flush() // it fails where the client is gone, and so will the next write
	w.buffer.Reset(nil)
	listBuffers.Put(w.buffer)
	w.buffer = nil
}
