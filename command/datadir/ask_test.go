package datadir

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/servers"
	"github.com/karve-k8s/karve/datastore/directory"
)

// A server may be another user's, and answer anything.
func TestAskLimitsAnswersAndFollowsNone(t *testing.T) {
	t.Parallel()
	followed := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case "/elsewhere":
			followed = true
		case "/metrics":
			for r.Context().Err() == nil { // without end
				if _, err := io.WriteString(w, strings.Repeat("a", 1<<16)); err != nil {
					return
				}
			}
		}
	}))
	defer server.Close()
	dir := t.TempDir()
	if err := certs.WriteKubeconfig(filepath.Join(dir, servers.KubeconfigName), 0, certs.Kubeconfig{Server: server.URL}); err != nil {
		t.Fatal(err)
	}
	s := &ServerState{}
	if err := s.ask(t.Context(), dir); err != nil {
		t.Fatal(err)
	}
	if s.State != stateNotReady || !strings.Contains(s.Problem, "302") || followed {
		t.Errorf("got %+v, followed: %v, want a server that is not ready because it redirects", s, followed)
	}
	text, err := fetch(t.Context(), server.Client(), server.URL+"/metrics")
	if err != nil || len(text) != answerLimit {
		t.Errorf("an answer without end: got %d bytes, %v, want %d", len(text), err, answerLimit)
	}
}

// A process that was stopped accepts connections, and says nothing.
func TestStatusOfASilentServer(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	silent := make(chan struct{})
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1); <-silent }))
	defer server.Close()
	defer close(silent)
	dir := t.TempDir()
	if err := certs.WriteKubeconfig(filepath.Join(dir, servers.KubeconfigName), 0, certs.Kubeconfig{Server: server.URL}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	s := &ServerStatus{ServerState: ServerState{DataDir: dir}}
	if err := s.ask(ctx, dir); err != nil {
		t.Fatal(err)
	}
	if s.State != stateNotReady || s.Problem == "" || asked.Load() != 1 {
		t.Errorf("got state %q, problem %q after %d requests, want one", s.State, s.Problem, asked.Load())
	}
}

// Root reads the directory of another user as that user: a link leads it to nothing of root's.
func TestReadFoundAsOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as somebody else")
	}
	const stranger = 54321 // no user of the machine
	roots := t.TempDir()
	if err := certs.WriteKubeconfig(filepath.Join(roots, servers.KubeconfigName), 0, certs.Kubeconfig{Server: "http://127.0.0.1:1"}); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "karve-found-") // every user can reach it, other than t.TempDir's
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := errors.Join(os.Symlink(filepath.Join(roots, servers.KubeconfigName), filepath.Join(dir, servers.KubeconfigName)),
		os.Chown(filepath.Join(dir, "lock"), stranger, stranger), os.Chown(dir, stranger, stranger)); err != nil {
		t.Fatal(err)
	}
	s := readFound(context.Background(), servers.Server{DataDir: dir, PID: os.Getpid()}, time.Now())
	if s.State != stateUnknown || !strings.Contains(s.Problem, "permission denied") || os.Geteuid() != 0 {
		t.Errorf("got %+v as user %d, want one that may not be read", s, os.Geteuid())
	}
}
