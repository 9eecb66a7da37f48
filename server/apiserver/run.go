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

	"k8s.io/client-go/tools/cache"

	"github.com/karve-k8s/karve/server/apiserver/replacements"
	"github.com/karve-k8s/karve/server/apiserver/stored"
	"github.com/karve-k8s/karve/server/insecure"
	"github.com/karve-k8s/karve/server/lifecycle"
	"github.com/karve-k8s/karve/server/ports"
	"github.com/karve-k8s/karve/server/sharedinformers"
)

// readyPoll is the time between two checks of a starting server. waitReady checks a slow start less often:
// the time between two checks is then a hundredth of what it has waited. Upstream offers no channel to wait on.
const readyPoll = 5 * time.Millisecond

// startGrace is how long a stop waits for post-start hooks that it may not interrupt.
const startGrace = 30 * time.Second

const (
	hookCheck = "poststarthook/" // begins the names of the hooks' checks in /readyz
	// storageReadiness is a hook that a stop may interrupt: it returns no error (k8s.io/apiserver
	// pkg/server/storage_readiness_hook.go). It waits for storage that may never be readable, such as Secrets
	// whose key is lost.
	storageReadiness = "storage-readiness"
)

// Server is a built chain. Run it once.
type Server struct {
	config        Config
	delay         time.Duration // --shutdown-delay-duration
	run           func(context.Context) error
	drained       <-chan struct{}
	insecureChain http.Handler
	socketChain   http.Handler // nil without a socket
	informers     sharedinformers.Lasting
	endInformers  func()
	addressTypes  []string // of nodes, the preferred one first
	informerName  *cache.InformerName
	early         *replacements.Early // nil: upstream's hook starts the informers
	stored        *stored.Check
	requests      *replacements.OpenRequests // nil: upstream ends the streams
	writes        *replacements.Writes       // nil: writes are not counted
	unfiltered    http.HandlerFunc

	interruptible []string // post-start hooks that a stop may interrupt

	notReady atomic.Pointer[string]
	prepared chan struct{} // closed once everything is installed
}

// Run serves its listeners until ctx ends. It calls ready when /readyz reports ok for
// everything except c.ReadyChecks and the versions of the stored objects are known.
//
// Run returns after upstream's termination: /readyz fails, --shutdown-delay-duration passes,
// the hooks run, requests in flight are drained, watches and other streams are closed, and the
// audit log is flushed. No handler runs any more by then. The insecure listener and the socket stay open as
// long as the secure one.
func (s *Server) Run(ctx context.Context, ready func()) error {
	running, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	ended, end := context.WithCancel(context.Background())
	defer end()
	defer s.informerName.Release()
	defer s.stored.Stop()
	isReady := make(chan struct{})
	go func() {
		if s.waitReady(running) {
			close(isReady)
			checking := "the versions of the stored objects"
			s.notReady.Store(&checking)
			if s.stored.Wait(running) {
				ready()
			}
		}
	}()
	go func() {
		select {
		case <-ctx.Done():
			s.awaitHooks()
			stop(context.Cause(ctx))
		case <-running.Done():
		}
		select {
		case <-time.After(s.delay):
			s.requests.Await(ended, ports.Limit, s.config.Log)
		case <-ended.Done():
		}
	}()

	var plain sync.WaitGroup
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	defer stopServing()
	if s.config.InsecureListener != nil {
		plain.Go(func() {
			if err := insecure.Serve(serving, s.config.InsecureListener, s.insecureChain, s.config.Insecure); err != nil {
				stop(fmt.Errorf("insecure listener: %w", err))
			}
		})
	}
	if s.config.Socket != nil {
		plain.Go(func() {
			if err := insecure.ServePlain(serving, s.config.Socket, s.socketChain, s.config.SocketGroups.ConnContext, s.config.Insecure); err != nil {
				stop(fmt.Errorf("socket: %w", err))
			}
		})
	}
	go func() {
		select {
		case <-s.drained:
			stopServing()
			s.requests.Finish()
		case <-serving.Done():
		}
	}()

	if s.early != nil {
		s.early.Wait(running)
	}
	err := s.runBounded(running)
	s.endInformers()
	stopServing()
	plain.Wait()
	err = errors.Join(err, s.requests.Wait())
	if cause := context.Cause(running); cause != nil && !errors.Is(cause, context.Canceled) {
		return cause
	}
	return err
}

// runBounded runs the chain. It reports a termination that takes longer than
// requests in flight may, and goes on to wait for it. Upstream has no such limit: if the storage is unreachable, its
// pre-shutdown hooks can wait for ever.
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
		lifecycle.Overdue(ctx, fmt.Errorf("still terminating %v after it was told to stop (is the datastore unreachable?)", limit))
		return <-done
	}
}

// Informers returns the API server's own informers. Other parts of the process may use the factory, add informers to it and
// start them: they run as long as the API server takes requests.
func (s *Server) Informers() sharedinformers.Lasting { return s.informers }

// NodeAddressTypes returns the types of node addresses at which the API server reaches kubelets, the
// preferred one first.
func (s *Server) NodeAddressTypes() []string { return s.addressTypes }

// NotReady returns the checks that failed in the last request of /readyz, or what ready waits for
// after it.
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
	for begin := time.Now(); ; {
		status, body := s.get(ctx, "/readyz?"+exclude.Encode())
		if status == http.StatusOK {
			return true
		}
		text := strings.Join(failingChecks(body), ", ")
		s.notReady.Store(&text)
		select {
		case <-time.After(max(readyPoll, time.Since(begin)/100)):
		case <-ctx.Done():
			return false
		}
	}
}

// awaitHooks returns when no post-start hook is running that ends the process if it is interrupted
// (klog.Fatalf in k8s.io/apiserver pkg/server/hooks.go), or after startGrace.
func (s *Server) awaitHooks() {
	limit := time.NewTimer(startGrace)
	defer limit.Stop()
	tick := time.NewTicker(readyPoll)
	defer tick.Stop()
	for {
		_, body := s.get(context.Background(), "/readyz?verbose")
		if !slices.ContainsFunc(failingChecks(body), func(check string) bool {
			hook, ok := strings.CutPrefix(check, hookCheck)
			return ok && hook != storageReadiness && !slices.Contains(s.interruptible, hook)
		}) {
			return
		}
		select {
		case <-tick.C:
		case <-limit.C:
			return
		}
	}
}

// Healthy requests /livez without the checks of exclude, and returns those that fail.
func (s *Server) Healthy(ctx context.Context, exclude ...string) error {
	status, body := s.get(ctx, "/livez?"+url.Values{"verbose": {""}, "exclude": exclude}.Encode())
	if status == http.StatusOK {
		return nil
	}
	return fmt.Errorf("/livez: %s", strings.Join(failingChecks(body), ", "))
}

// Failing requests /readyz and returns the checks that fail.
func (s *Server) Failing(ctx context.Context) []string {
	_, body := s.get(ctx, "/readyz?verbose")
	return failingChecks(body)
}

// get calls the health endpoints directly, without the filters, so it needs no connection and
// no identity, and no limit applies.
func (s *Server) get(ctx context.Context, path string) (int, string) {
	answer := httptest.NewRecorder()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return 0, err.Error()
	}
	s.unfiltered(answer, r)
	return answer.Code, answer.Body.String()
}

// failingChecks returns the names marked [-] in a verbose health response.
func failingChecks(body string) []string {
	var failing []string
	for line := range strings.Lines(body) {
		if name, ok := strings.CutPrefix(line, "[-]"); ok {
			failing = append(failing, strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(name), "failed: reason withheld")))
		}
	}
	return failing
}

// WritesEnd returns a channel that is closed when all requests have ended that are in progress
// now and may create an object in the namespace. They include requests on the secure and the
// insecure port and from this process, for built-in and custom resources. The channel is
// closed at the latest when the request timeout has passed.
//
// WritesEnd does not know what other API servers store. A request whose client has
// disconnected may still be on its way through storage.
func (s *Server) WritesEnd(namespace string) <-chan struct{} {
	return s.writes.Barrier(namespace)
}

// Part is the API server as a part of a control plane, with both of its listeners. The
// insecure listener has to close when the secure one has drained, and only this part knows
// when that is.
type Part struct {
	// Configure returns the configuration. Run calls it first, when the parts that this one
	// needs are ready.
	Configure func() (Config, error)
	// Built is called when the chain has been built. From then on, the server closes the
	// listeners itself. Nil: no call.
	Built func()

	server atomic.Pointer[Server]
}

// Run builds the chain, serves it until ctx ends, and closes Config.Loopback.
func (p *Part) Run(ctx context.Context, ready func()) error {
	config, err := p.Configure()
	if err != nil {
		return err
	}
	defer config.Loopback.Close()
	server, err := New(ctx, config)
	if err != nil {
		return err
	}
	if p.Built != nil {
		p.Built()
	}
	p.server.Store(server)
	return server.Run(ctx, ready)
}

// Server returns the server. It is valid once Run has called ready.
func (p *Part) Server() *Server { return p.server.Load() }

// LastError returns the checks that failed in the last request of /readyz.
func (p *Part) LastError() error {
	if server := p.server.Load(); server != nil {
		return server.NotReady()
	}
	return errors.New("not built yet")
}
