package snapshots

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/socket"
)

// controlGrace is how long stop waits for the answers to cancelled requests before it closes their
// connections.
const controlGrace = time.Second

// errControlStops is the answer to requests while the server stops.
var errControlStops = controlError{http.StatusServiceUnavailable, "the server is shutting down"}

// controlError is an error with an HTTP status. Any other error is answered with 422.
type controlError struct {
	status int
	text   string
}

func (e controlError) Error() string { return e.text }

// controlHandler answers a request of the control socket, or returns an error.
type controlHandler func(http.ResponseWriter, *http.Request) error

// controlSocket serves HTTP on the socket in the data directory. Call handle before serve.
type controlSocket struct {
	listener net.Listener
	mux      *http.ServeMux
	server   *http.Server
	serving  sync.WaitGroup
	cancel   context.CancelCauseFunc
	running  sync.RWMutex // read-locked by each request
}

// listenControl creates the socket.
func listenControl(dataDir string) (*controlSocket, error) {
	listener, err := socket.Listen(dataDir, control.Socket)
	if err != nil {
		return nil, fmt.Errorf("control socket: %w", err)
	}
	s := &controlSocket{listener: listener, mux: http.NewServeMux()}
	var requests context.Context
	requests, s.cancel = context.WithCancelCause(context.Background())
	s.server = &http.Server{
		Handler: s.mux, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
		BaseContext: func(net.Listener) context.Context { return requests },
	}
	return s, nil
}

// handle adds a handler, and sends its errors as answers.
func (s *controlSocket) handle(pattern string, do controlHandler) {
	s.mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
		err := error(errControlStops)
		if s.running.TryRLock() { // this fails from the call of stop on
			defer s.running.RUnlock()
			err = do(w, r)
		}
		if err != nil && errors.Is(context.Cause(r.Context()), errControlStops) {
			err = errControlStops
		}
		var known controlError
		switch {
		case err == nil:
		case errors.As(err, &known):
			http.Error(w, known.text, known.status)
		default:
			http.Error(w, err.Error(), http.StatusUnprocessableEntity)
		}
	})
}

func (s *controlSocket) serve() {
	s.serving.Go(func() { _ = s.server.Serve(s.listener) }) // until stop
}

// stop cancels the requests in flight, and returns when their handlers have returned. Call it at
// most once; it does not need serve.
func (s *controlSocket) stop() {
	s.cancel(errControlStops)
	grace, done := context.WithTimeout(context.Background(), controlGrace)
	defer done()
	_ = s.server.Shutdown(grace)
	s.server.Close() // those whose client neither reads nor writes
	s.listener.Close()
	s.serving.Wait()
	s.running.Lock() // for good
}
