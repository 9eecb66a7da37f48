package loopback

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// response is a handler's answer on its way to the client, with what both sides need to end
// it. It is the handler's http.ResponseWriter.
type response struct {
	ctx     context.Context // of the handler's request
	cancel  context.CancelCauseFunc
	client  *http.Request
	request *requestBody
	body    *pipe
	unwatch []func() bool

	header   http.Header
	status   int         // 0 before WriteHeader
	first    http.Header // header when it was written
	declared int64       // Content-Length, -1 if not declared
	written  int64
	over     atomic.Bool   // the handler has returned
	sent     chan struct{} // closed when the client may have status and first,
	// which then don't change any more:
	committed bool
	whole     bool // the handler had returned before
	broken    bool // and had panicked
}

func newResponse(ctx context.Context, cancel context.CancelCauseFunc, client *http.Request, body io.ReadCloser) *response {
	w := &response{
		ctx: ctx, cancel: cancel, client: client, request: &requestBody{from: body}, body: newPipe(),
		header: http.Header{}, declared: -1, sent: make(chan struct{}),
	}
	w.unwatch = []func() bool{
		context.AfterFunc(client.Context(), func() { cancel(context.Cause(client.Context())) }),
		context.AfterFunc(ctx, w.breakOff),
	}
	return w
}

// breakOff ends both directions when the request has ended before its handler.
func (w *response) breakOff() {
	w.body.abort(w.cause(), context.Cause(w.ctx))
	w.request.Close()
}

// cause is the error that the client gets for a request that has ended early.
func (w *response) cause() error {
	if w.client.Context().Err() != nil {
		return w.client.Context().Err()
	}
	if errors.Is(context.Cause(w.ctx), errClosed) {
		return errClosed
	}
	return io.ErrUnexpectedEOF
}

// The handler calls Header, WriteHeader, Write and Flush.

func (w *response) Header() http.Header { return w.header }

func (w *response) WriteHeader(status int) {
	if status < 100 || status > 999 { // as net/http has it
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	}
	if w.status != 0 || status < 200 {
		return
	}
	w.status, w.first = status, w.header.Clone()
	if n, err := strconv.ParseInt(w.first.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		w.declared = n
	} else {
		w.first.Del("Content-Length")
	}
	if _, ok := w.first["Date"]; !ok {
		w.first.Set("Date", time.Now().UTC().Format(http.TimeFormat))
	}
}

func (w *response) Write(b []byte) (int, error) {
	if w.over.Load() {
		return 0, io.ErrClosedPipe
	}
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if !w.committed {
		w.sniff(b)
	}
	w.written += int64(len(b))
	if w.declared >= 0 && w.written > w.declared {
		return 0, http.ErrContentLength
	}
	if w.client.Method == http.MethodHead {
		return len(b), nil
	}
	if w.written > bufferSize { // the buffer will be full, and the client has to read from it
		w.send()
	}
	return w.body.Write(b)
}

// sniff sets the Content-Type of an answer that starts with b, unless it is set.
func (w *response) sniff(b []byte) {
	if w.written > 0 || len(b) == 0 {
		return
	}
	if _, ok := w.first["Content-Type"]; !ok && w.first.Get("Content-Encoding") == "" {
		w.first.Set("Content-Type", http.DetectContentType(b))
	}
}

func bodyAllowed(status int) bool {
	return status != http.StatusNoContent && status != http.StatusNotModified
}

func (w *response) Flush() { _ = w.FlushError() }

// FlushError is for [http.ResponseController].
func (w *response) FlushError() error {
	if w.over.Load() {
		return io.ErrClosedPipe
	}
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.send()
	return w.body.Flush()
}

// CloseNotify is deprecated, but upstream's wrappers of response writers treat a writer
// without it as one that cannot flush.
func (w *response) CloseNotify() <-chan bool {
	gone := make(chan bool, 1)
	context.AfterFunc(w.ctx, func() { gone <- true })
	return gone
}

// send lets the client have status and header.
func (w *response) send() {
	if !w.committed {
		w.committed = true
		close(w.sent)
	}
}

// end is called when the handler has returned, or panicked.
func (w *response) end(finished bool) {
	w.over.Store(true)
	if w.status == 0 && finished {
		w.WriteHeader(http.StatusOK)
	}
	err := io.EOF
	if w.client.Method != http.MethodHead && (!finished || w.declared > w.written && bodyAllowed(w.status)) {
		err = io.ErrUnexpectedEOF
	}
	for _, stop := range w.unwatch {
		stop()
	}
	w.body.finish(err)
	w.request.Close()
	if !w.committed {
		w.whole, w.broken = true, !finished
		w.send()
	}
	w.cancel(errFinished)
}

// answer is the client's view, once sent is closed or the request has ended. A handler may
// answer because its client has gone; that client gets no answer.
func (w *response) answer() (*http.Response, error) {
	if w.client.Context().Err() != nil {
		w.breakOff()
		return nil, w.client.Context().Err()
	}
	select {
	case <-w.sent:
	default:
		return nil, w.cause()
	}
	if w.broken {
		return nil, ErrReset
	}
	length := w.declared
	head := w.client.Method == http.MethodHead
	if w.whole && length < 0 && !(head && w.written == 0) {
		length = w.written
		if bodyAllowed(w.status) {
			w.first.Set("Content-Length", strconv.FormatInt(length, 10))
		}
	}
	return &http.Response{
		Status:     strconv.Itoa(w.status) + " " + http.StatusText(w.status),
		StatusCode: w.status,
		Proto:      "HTTP/2.0", ProtoMajor: 2,
		Header: w.first, ContentLength: length,
		Body: responseBody{w}, Request: w.client,
	}, nil
}

// responseBody is the client's end of the pipe.
type responseBody struct{ w *response }

var errClosed = errors.New("loopback response body is closed")

func (b responseBody) Read(p []byte) (int, error) { return b.w.body.Read(p) }

// Close ends the handler's request, unless it has returned.
func (b responseBody) Close() error {
	b.w.cancel(errClosed)
	b.w.body.abort(errClosed, errClosed)
	return nil
}

// requestBody is the handler's end of the client's body.
type requestBody struct {
	from io.ReadCloser

	mu     sync.Mutex
	closed bool
}

func (b *requestBody) Read(p []byte) (int, error) {
	if err := b.refusal(); err != nil {
		return 0, err
	}
	n, err := b.from.Read(p)
	if err != nil && err != io.EOF {
		if refused := b.refusal(); refused != nil { // the cause of the other
			err = refused
		}
	}
	return n, err
}

func (b *requestBody) refusal() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return http.ErrBodyReadAfterClose
	}
	return nil
}

func (b *requestBody) Close() error {
	b.mu.Lock()
	first := !b.closed
	b.closed = true
	b.mu.Unlock()
	if !first {
		return nil
	}
	return b.from.Close()
}
