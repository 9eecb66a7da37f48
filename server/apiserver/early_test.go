package apiserver

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
	genericapiserver "k8s.io/apiserver/pkg/server"

	"github.com/karve-k8s/karve/server/loopback"
)

// built is a chain, and a function that runs it until it is ready, and one that stops it.
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

// synced tells for each informer that has been started whether it has synced by now.
func (s *Server) synced() map[reflect.Type]bool {
	now := make(chan struct{})
	close(now)
	return s.informers.WaitForCacheSync(now)
}

// The hooks find what they wait for: every informer that they would start, and all
// that it has to know, although no hook has run.
func TestInformersAreSyncedBeforeTheHooks(t *testing.T) {
	s, run, stop := built(t, chainConfig(t, nil))
	deadline, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	select {
	case <-s.early.filled:
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
	if failing := failingChecks(body); !slices.Contains(failing, "poststarthook/"+startInformersHook) {
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
	if s.early.ctx.Err() == nil {
		t.Error("the informers were not stopped")
	}
}

// Until no more requests are accepted, the informers follow what happens: requests are
// authorized by what they know, those of pre-shutdown hooks too.
func TestInformersOutlivePreShutdownHooks(t *testing.T) {
	s, run, stop := built(t, chainConfig(t, nil))
	run()
	hooks, ran := s.early.hooks, false
	s.early.hooks = func() error {
		err := hooks()
		ran = true
		select {
		case <-s.early.ctx.Done():
			t.Error("the informers were stopped before the hooks had finished")
		case <-time.After(500 * time.Millisecond):
		}
		if now, want := s.early.requests(), s.early.started(); now < want || want < 30 {
			t.Errorf("%d requests of this process are under way, want the watches of %d informers, at least", now, want)
		}
		return err
	}
	stop()
	if !ran {
		t.Error("the hooks did not run")
	}
	if s.early.ctx.Err() == nil {
		t.Error("the informers were not stopped")
	}
}

// A hook that waits for storage that is gone does not keep the rest of the shutdown waiting.
func TestHooksHaveALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release, began := make(chan struct{}), time.Now()
		e := &earlyInformers{hooks: func() error { <-release; return errors.New("too late") }}
		if err := e.runHooks(hooksLimit); err != nil || time.Since(began) != hooksLimit {
			t.Errorf("got %v after %v, want nil after %v", err, time.Since(began), hooksLimit)
		}
		close(release)
		broken := errors.New("broken")
		e.hooks = func() error { return broken }
		if err := e.runHooks(hooksLimit); !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
	})
}

// An audit backend has to be running before the first request.
func TestInformersWaitForAudit(t *testing.T) {
	s, run, stop := built(t, chainConfig(t, []string{"audit-log-path=" + filepath.Join(t.TempDir(), "audit.log"), "audit-policy-file=" + auditPolicy(t)}))
	if s.early != nil || len(s.synced()) > 0 {
		t.Errorf("informers were started early: %v", s.synced())
	}
	run()
	stop()
}

// neverReady is a storage whose cache does not fill.
type neverReady struct{ rest.StorageWithReadiness }

func (neverReady) ReadinessCheck() error { return errors.New("no") }

// Informers that don't fill hold nothing up for ever, nor a stop.
func TestEarlyInformersHaveALimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &earlyInformers{filled: make(chan struct{})}
		e.ctx, e.stop = context.WithCancel(t.Context())
		began := time.Now()
		e.wait(t.Context())
		if took := time.Since(began); took != earlyLimit {
			t.Errorf("waited %v, want %v", took, earlyLimit)
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		began = time.Now()
		e.wait(ctx)
		if took := time.Since(began); took != 0 {
			t.Errorf("waited %v for a server that is to stop", took)
		}
		// Nor does a storage that is never ready.
		unready := genericapiserver.NewStorageReadinessHook(time.Hour)
		unready.RegisterStorage(metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, neverReady{})
		var filling sync.WaitGroup
		filling.Go(func() { e.fill([]*genericapiserver.GenericAPIServer{{StorageReadinessHook: unready}}) })
		time.Sleep(time.Minute)
		e.stop()
		filling.Wait()
		select {
		case <-e.filled:
			t.Error("filled, with a storage that was not ready")
		default:
		}
	})
}

// Who asks for OpenAPI before it is installed, and only who does, waits: the next
// server of the chain would make all of its documents for an answer that lacks the others'.
func TestOpenAPIWaitsUntilTheChainIsPrepared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &Server{prepared: make(chan struct{})}
		h := s.whenPrepared(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
		var answers atomic.Int32
		ask := func(path string) {
			answer := httptest.NewRecorder()
			h.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil).WithContext(t.Context()))
			if answer.Code == http.StatusTeapot {
				answers.Add(1)
			}
		}
		ask("/api/v1/namespaces")
		ask("/readyz")
		if n := answers.Load(); n != 2 {
			t.Errorf("%d answers, want both", n)
		}
		for _, path := range []string{openAPIV2, openAPIV3, openAPIV3Versions + "apis/apps/v1"} {
			go ask(path)
		}
		synctest.Wait()
		if n := answers.Load(); n != 2 {
			t.Errorf("%d documents were asked for too early", n-2)
		}
		close(s.prepared)
		synctest.Wait()
		if n := answers.Load(); n != 5 {
			t.Errorf("%d answers, want all", n)
		}
	})
}
