package snapshots

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karve-k8s/karve/control"
)

// A stop cancels requests, waits until their handlers have returned, whatever their
// clients do, and lets no other begin.
func TestControlSocketStopsItsRequests(t *testing.T) {
	dir := t.TempDir()
	s, err := listenControl(dir)
	if err != nil {
		t.Fatal(err)
	}
	var handling, begun atomic.Int32
	entered := make(chan struct{}, 2)
	do := func(wait func(*http.Request)) controlHandler {
		return func(w http.ResponseWriter, r *http.Request) error {
			begun.Add(1)
			handling.Add(1)
			defer handling.Add(-1)
			entered <- struct{}{}
			wait(r)
			time.Sleep(50 * time.Millisecond) // what uses the engine still
			return r.Context().Err()
		}
	}
	s.handle("GET "+control.SnapshotPath, do(func(r *http.Request) { <-r.Context().Done() }))
	s.handle("POST "+control.ResetPath, do(func(r *http.Request) { _, _ = io.ReadAll(r.Body) }))
	s.serve()

	client := control.New(dir)
	defer client.Close()
	answers := make(chan error, 2)
	go func() { answers <- client.Snapshot(context.Background(), io.Discard) }()
	// The upload of a snapshot that stalls.
	body, writing := io.Pipe()
	go func() {
		_, err := client.Reset(context.Background(), body)
		answers <- err
	}()
	<-entered
	<-entered
	s.stop()
	if n := handling.Load(); n != 0 {
		t.Errorf("%d handlers run after the stop", n)
	}
	writing.Close() // net/http's client waits for its own upload
	told := 0
	for range 2 {
		err := <-answers
		if err == nil {
			t.Error("a request that was cut short has an answer")
		} else if strings.Contains(err.Error(), errControlStops.text) {
			told++
		}
	}
	if told == 0 {
		t.Error("no client was told why")
	}
	if err := client.Snapshot(context.Background(), io.Discard); err == nil || begun.Load() != 2 {
		t.Errorf("a request after the stop: got %v, and %d have begun", err, begun.Load())
	}
}

// A request whose handler has not begun when the stop does is refused.
func TestControlSocketRefusesAfterStop(t *testing.T) {
	s, err := listenControl(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	called := false
	s.handle("GET /", func(http.ResponseWriter, *http.Request) error {
		called = true
		return errors.New("late")
	})
	s.stop()
	answer := httptest.NewRecorder()
	s.mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, "/", nil))
	if called || answer.Code != http.StatusServiceUnavailable {
		t.Errorf("got %d %q, called: %v", answer.Code, answer.Body, called)
	}
}
