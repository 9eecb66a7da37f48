package apiserver

import (
	"context"
	"net/http"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/karve-k8s/karve/server/apiserver/replacements"
	"github.com/karve-k8s/karve/server/loopback"
)

// built returns a chain, a function that runs it until it is ready, and one that stops it.
func built(t *testing.T, c Config) (s *Server, run, stop func()) {
	t.Helper()
	c.Loopback = loopback.NewServer(t.Logf)
	c.TerminationTimeout = time.Minute
	s, err := New(t.Context(), c)
	if err != nil {
		c.Loopback.Close()
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ready, done := make(chan struct{}), make(chan error, 1)
	run = func() {
		go func() { done <- s.Run(ctx, func() { close(ready) }) }()
		select {
		case <-ready:
		case err := <-done:
			t.Fatalf("the chain ended: %v", err)
		case <-time.After(2 * time.Minute):
			t.Fatalf("not ready: %v", s.NotReady())
		}
	}
	stop = func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		c.Loopback.Close()
	}
	return s, run, stop
}

// synced reports for each informer that has been started whether it has synced.
func (s *Server) synced() map[reflect.Type]bool {
	now := make(chan struct{})
	close(now)
	return s.informers.WaitForCacheSync(now)
}

// Before any hook has run, every informer that the hooks would start has synced and has its
// objects.
func TestInformersAreSyncedBeforeTheHooks(t *testing.T) {
	s, run, stop := built(t, chainConfig(t, nil))
	deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-s.early.Filled():
	case <-deadline.Done():
		t.Fatal("the informers were not filled")
	}
	early := s.synced()
	if len(early) < 30 {
		t.Errorf("only %d informers were started early: %v", len(early), early)
	}
	for informer, ok := range early {
		if !ok {
			t.Errorf("%v has not synced", informer)
		}
	}
	_, body := s.get(t.Context(), "/readyz?verbose")
	if failing := failingChecks(body); !slices.Contains(failing, "poststarthook/"+replacements.StartInformersHook) {
		t.Errorf("a hook has run early; not ready are %v", failing)
	}
	run()
	for informer := range s.synced() {
		if _, was := early[informer]; !was {
			t.Errorf("%v was not started early", informer)
		}
	}
	if status, body := s.get(t.Context(), "/readyz?verbose"); status != http.StatusOK {
		t.Errorf("/readyz: %d %s", status, body)
	}
	stop()
	select {
	case <-s.early.Stopped():
	default:
		t.Error("the informers were not stopped")
	}
}

// The informers follow changes until the server accepts no more requests. Requests, including
// those of pre-shutdown hooks, are authorized by what the informers know.
func TestInformersOutlivePreShutdownHooks(t *testing.T) {
	s, run, stop := built(t, chainConfig(t, nil))
	run()
	hooks, ran := s.early.Hooks, false
	s.early.Hooks = func() error {
		err := hooks()
		ran = true
		select {
		case <-s.early.Stopped():
			t.Error("the informers were stopped before the hooks had finished")
		case <-time.After(500 * time.Millisecond):
		}
		if now, want := s.early.Requests(), s.early.Watches(); now < want || want < 30 {
			t.Errorf("%d requests of this process are under way, want the watches of %d informers, at least", now, want)
		}
		return err
	}
	stop()
	if !ran {
		t.Error("the hooks did not run")
	}
	select {
	case <-s.early.Stopped():
	default:
		t.Error("the informers were not stopped")
	}
}

// An audit backend has to run before the first request.
func TestInformersWaitForAudit(t *testing.T) {
	s, run, stop := built(t, chainConfig(t, []string{"audit-log-path=" + filepath.Join(t.TempDir(), "audit.log"), "audit-policy-file=" + auditPolicy(t)}))
	if s.early != nil || len(s.synced()) > 0 {
		t.Errorf("informers were started early: %v", s.synced())
	}
	run()
	stop()
}
