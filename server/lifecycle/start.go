package lifecycle

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/karve-k8s/karve/internal/logbridge"
)

// admitAfter is how long a start may take from the moment at which the API server serves until
// administrators are let in. A part that reports that it is blocked lets them in at once.
const admitAfter = 30 * time.Second

// Start is one start of a control plane: what its parts do, what blocks them, and what users and systemd are
// told of it. Set the exported fields before Run.
type Start struct {
	*Trace
	// Limit limits the start of each part up to the API server.
	Limit time.Duration
	// RequireReady makes Run fail if not everything is ready Limit after the API server has begun to serve.
	RequireReady bool

	// URL and Kubeconfig are those of an administrator. Publish writes the kubeconfig, whose presence means that
	// the cluster answers.
	URL, Kubeconfig string
	Publish         func() error
	// Ready is called once, when every part is ready.
	Ready func(took time.Duration)
	// Healthy returns an error if systemd's watchdog should restart a server that is ready.
	Healthy func(context.Context) error
	// Progress is called every few seconds while parts start. It may be nil.
	Progress func(Progress)
	Log      *logrus.Logger

	systemd *Systemd
	serves  chan struct{} // closed when the API server begins to serve
	blocks  chan struct{} // closed when the first part is blocked

	announcing sync.Mutex // held while systemd is told how far the start is
	readyAt    atomic.Pointer[time.Time]
	stopping   atomic.Bool // and systemd has been told

	mu       sync.Mutex
	doing    map[string]string // what parts have reported
	reported time.Time         // to systemd, or the beginning of the start
	blocked  map[string]*blockage
	tell     func() // closes blocks
}

// NewStart begins a start. It has to come before upstream's code runs: see [TakeSystemd].
func NewStart() *Start {
	now := time.Now()
	s := &Start{
		Trace: NewTrace(now), systemd: TakeSystemd(), serves: make(chan struct{}), blocks: make(chan struct{}),
		doing: map[string]string{}, reported: now, blocked: map[string]*blockage{},
	}
	s.tell = sync.OnceFunc(func() { close(s.blocks) })
	return s
}

// Limited returns a part whose start is limited.
func (s *Start) Limited(name string, run func(context.Context, func()) error, needs ...string) Part {
	silent := func() error { return ErrNoAnswer }
	return s.traced(Within(s.Limit, Part{name, needs, run}, silent))
}

// Retried returns a part that works through the API. It has no limit and is run again: see [Retried].
func (s *Start) Retried(name string, run func(context.Context, func()) error, setBlocked func(error), needs ...string) Part {
	return s.traced(Retried(Part{name, needs, run}, setBlocked))
}

// Serving returns the part of the API server. Its start is limited until it calls serves. last returns its last error.
func (s *Start) Serving(name string, run func(ctx context.Context, serves, ready func()) error, last func() error, needs ...string) Part {
	return s.traced(Part{name, needs, func(ctx context.Context, ready func()) error {
		until := func(ctx context.Context, serves func()) error {
			return run(ctx, func() { serves(); s.served(ctx) }, ready)
		}
		return Within(s.Limit, Part{Run: until}, last).Run(ctx, func() {})
	}})
}

// served lets administrators in soon. ctx is the API server's.
func (s *Start) served(ctx context.Context) {
	close(s.serves)
	if !s.RequireReady {
		return
	}
	timer := time.AfterFunc(s.Limit, func() {
		if !s.IsReady() {
			Failed(ctx, fmt.Errorf("it has served for %v, but the start is not complete: %v", s.Limit, s.reasons()))
		}
	})
	context.AfterFunc(ctx, func() { timer.Stop() })
}

// Run runs the parts, as the function [Run] does, and tells users and systemd how far they are. It announces a control plane whose
// parts are all ready. Then it stops them when ctx ends, and calls gone when no part runs any more.
func (s *Start) Run(ctx context.Context, parts []Part, gone func()) error {
	running, cancel := context.WithCancel(ctx)
	var reports sync.WaitGroup
	defer reports.Wait()
	defer cancel()
	go s.systemd.Watchdog(running, func(ctx context.Context) error {
		if !s.IsReady() {
			return nil // startup has its own time limit
		}
		return s.Healthy(ctx)
	})
	reports.Go(func() { s.tellProgress(running) })
	reports.Go(func() { s.admit(running) })
	return Run(ctx, parts, s.does, s.announce, gone)
}

// does reports that a part is about to start or stop.
func (s *Start) does(verb, part string) {
	s.Log.Debugf("%s the %s", verb, part)
	if verb == Stopping && s.stopping.CompareAndSwap(false, true) {
		s.systemd.Stopping()
		logbridge.Stopping(true)
	}
	s.systemd.Status(verb + " the " + part)
}

// announce announces a control plane whose parts are all ready.
// The order matters: the kubeconfig comes first, then systemd, then the ready line. If the start takes
// long, both were told before: see admit.
func (s *Start) announce() error {
	s.announcing.Lock()
	defer s.announcing.Unlock()
	if err := s.Publish(); err != nil {
		return err
	}
	now := time.Now()
	took := now.Sub(s.began)
	s.readyAt.Store(&now)
	s.unblock()
	s.systemd.Ready(fmt.Sprintf("ready at %s, started in %v", s.URL, took.Round(time.Millisecond)))
	s.Ready(took)
	return nil
}

// admit lets administrators in while a start cannot be completed: the admin's kubeconfig is written, and
// systemd no longer waits. Otherwise it would stop the service again and again. It returns when that is done,
// or when running ends.
func (s *Start) admit(running context.Context) {
	select {
	case <-s.serves:
	case <-running.Done():
		return
	}
	timer := time.NewTimer(admitAfter)
	defer timer.Stop()
	select {
	case <-s.blocks:
	case <-timer.C:
	case <-running.Done():
		return
	}
	s.announcing.Lock()
	defer s.announcing.Unlock()
	if s.IsReady() || running.Err() != nil {
		return
	}
	if err := s.Publish(); err != nil {
		s.Log.Errorf("write the administrator's kubeconfig: %v", err)
	}
	why := s.reasons()
	if why == "" {
		why = "the start takes long"
	}
	_ = s.systemd.Ready(fmt.Sprintf("serving at %s, but not ready: %s", s.URL, why)) // if systemd cannot be reached, it does not stop this process either
	s.Log.Warnf("the API server serves at %s, but the start is not complete; the administrator's kubeconfig is %s", s.URL, s.Kubeconfig)
}

// IsReady reports whether every part has become ready.
func (s *Start) IsReady() bool { return s.readyAt.Load() != nil }

// ReadyAt returns when every part had become ready; nil before that.
func (s *Start) ReadyAt() *time.Time { return s.readyAt.Load() }

// IsStopping reports whether the parts are being stopped.
func (s *Start) IsStopping() bool { return s.stopping.Load() }
