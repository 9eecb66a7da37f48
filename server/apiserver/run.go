package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/informers"

	"github.com/karve-k8s/karve/server/apiserver/openapi"
	"github.com/karve-k8s/karve/server/apiserver/replacements"
	"github.com/karve-k8s/karve/server/insecure"
)

// readyPoll is how often a starting server is asked whether it is ready. The
// question is a function call; upstream offers no channel to wait on.
const readyPoll = 5 * time.Millisecond

// startGrace is how long a stop waits for a start that is under way.
const startGrace = 30 * time.Second

// Server is a built chain. Run it once.
type Server struct {
	config        Config
	delay         time.Duration // --shutdown-delay-duration
	run           func(context.Context) error
	drained       <-chan struct{}
	insecureChain http.Handler
	informers     informers.SharedInformerFactory
	early         *replacements.Early // nil: upstream's hook starts them
	otherFactories
	prefixes   *prefixes
	streams    *replacements.OpenStreams // nil: upstream's stop
	writes     *replacements.Writes      // nil: they are not counted
	unfiltered http.HandlerFunc
	notReady   atomic.Pointer[string]
	openAPI    *openapi.Aggregated // nil: upstream's own, or no aggregator
	prepared   chan struct{}       // everything is installed
	settled    chan struct{}       // everything around the server is up
	settle     sync.Once
	stopping   chan struct{} // it has been told to stop
}

// Settle tells the server that everything around it is up, and does what could wait
// for that: the index of OpenAPI documents. It returns when that is done.
func (s *Server) Settle() {
	s.release()
	if s.openAPI != nil {
		s.openAPI.BuildIndex()
	}
}

// release lets requests go on that are held until everything is up.
func (s *Server) release() { s.settle.Do(func() { close(s.settled) }) }

// Run serves both listeners until ctx ends, and calls ready when /readyz says
// ok for everything but c.ReadyChecks. It returns when the termination is over
// as upstream does it: /readyz fails, --shutdown-delay-duration passes, hooks
// run, requests in flight are drained, watches and other streams closed, the audit log
// flushed. No handler runs any more then.
// The insecure listener stays open as long as the secure one.
func (s *Server) Run(ctx context.Context, ready func()) error {
	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	isReady := make(chan struct{})
	go func() {
		if s.waitReady(running) {
			close(isReady)
			ready()
		}
	}()
	go func() {
		select {
		case <-ctx.Done():
		case <-running.Done():
			return
		}
		close(s.stopping)
		s.release() // a held request would hold up the stop
		// A post-start hook that is cut short ends the process (klog.Fatalf in
		// k8s.io/apiserver pkg/server/hooks.go): let them come to their end.
		select {
		case <-isReady:
		case <-time.After(startGrace):
		}
		stop(context.Cause(ctx))
	}()

	plain := make(chan struct{})
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	go func() {
		defer close(plain)
		if s.config.InsecureListener == nil {
			return
		}
		err := insecure.Serve(serving, s.config.InsecureListener, s.insecureChain, s.config.Insecure)
		if err != nil {
			stop(fmt.Errorf("insecure listener: %w", err))
		}
	}()
	go func() {
		select {
		case <-s.drained:
			stopServing()
		case <-serving.Done():
		}
	}()

	if s.early != nil {
		done := s.config.Step("informers")
		s.early.Wait(running)
		done()
	}
	err := s.runBounded(running)
	s.early.Stop()
	stopServing()
	<-plain
	err = errors.Join(err, s.streams.Wait())
	if cause := context.Cause(running); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// runBounded runs the chain, and gives up on a termination that takes longer
// than the requests in flight may. Upstream has no such limit: with storage
// gone, its pre-shutdown hooks can wait for ever.
func (s *Server) runBounded(ctx context.Context) error {
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	limit := s.delay + s.config.TerminationTimeout
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return fmt.Errorf("still terminating %v after it was told to stop (is its storage gone?)", limit)
	}
}

// Informers are those of the API server itself; what it has started runs until
// it has drained. Others in the process may use them and add to them.
func (s *Server) Informers() informers.SharedInformerFactory { return s.informers }

// NotReady is what the last look at /readyz found failing.
func (s *Server) NotReady() error {
	if p := s.notReady.Load(); p != nil {
		return errors.New(*p)
	}
	return errors.New("not serving yet")
}

func (s *Server) waitReady(ctx context.Context) bool {
	exclude := url.Values{"verbose": {""}}
	for _, check := range s.config.ReadyChecks {
		exclude.Add("exclude", check.Name())
	}
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	hooks := checkSteps{s.config.Step, map[string]func(){}}
	defer hooks.see(nil)
	for {
		status, body := s.get(ctx, "/readyz?"+exclude.Encode())
		if status == http.StatusOK {
			return true
		}
		failing := failingChecks(body)
		hooks.see(failing)
		text := strings.Join(failing, ", ")
		s.notReady.Store(&text)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return false
		}
	}
}

// checkSteps makes a step of each check of /readyz that fails for a while: of each
// post-start hook, above all. They are as exact as readyPoll.
type checkSteps struct {
	begin   func(step string) (done func())
	failing map[string]func()
}

func (c checkSteps) see(failing []string) {
	for _, name := range failing {
		if c.failing[name] == nil {
			c.failing[name] = c.begin(name)
		}
	}
	for name, done := range c.failing {
		if !slices.Contains(failing, name) {
			done()
			delete(c.failing, name)
		}
	}
}

// Healthy asks /livez and returns what fails.
func (s *Server) Healthy(ctx context.Context) error {
	status, body := s.get(ctx, "/livez?verbose")
	if status == http.StatusOK {
		return nil
	}
	return fmt.Errorf("/livez: %s", strings.Join(failingChecks(body), ", "))
}

// get asks the health endpoints directly, past all filters: no connection, no
// identity, no limit.
func (s *Server) get(ctx context.Context, path string) (int, string) {
	answer := httptest.NewRecorder()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return 0, err.Error()
	}
	s.unfiltered(answer, r)
	return answer.Code, answer.Body.String()
}

// failingChecks reads the names marked [-] in a verbose health answer.
func failingChecks(body string) []string {
	var failing []string
	for line := range strings.Lines(body) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			failing = append(failing, strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(name), "failed: reason withheld")))
		}
	}
	return failing
}

// WritesEnd returns a channel that is closed when the requests that may make an object in
// a namespace, and are under way now, have ended: those from the secure and the insecure
// port, and from this process, for built-in and custom resources. It is closed at the
// latest when the time that a request may take has passed. What other API servers store is
// not known. A request whose client has gone may still be on its way through storage.
func (s *Server) WritesEnd(namespace string) <-chan struct{} {
	return s.writes.Barrier(namespace)
}
