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
	config, err := s.readKubeconfig(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ask(t.Context(), config); err != nil {
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

// runningAt returns a data directory whose lock this process holds, like a server that answers at url.
func runningAt(t *testing.T, url string) string {
	t.Helper()
	dir := t.TempDir()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	if err := certs.WriteKubeconfig(filepath.Join(dir, servers.KubeconfigName), 0, certs.Kubeconfig{Server: url}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// silentServer starts a server like a process that was stopped: it accepts connections, and says nothing to the
// first request, at which it calls asked. It answers others, which come from a client that has not given up, and
// counts them.
func silentServer(t *testing.T, asked func()) (url string, others *atomic.Int32) {
	t.Helper()
	others = new(atomic.Int32)
	var first atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if first.Swap(true) {
			others.Add(1)
			return
		}
		asked()
		<-r.Context().Done()
	}))
	t.Cleanup(server.Close)
	return server.URL, others
}

func TestStatusOfASilentServer(t *testing.T) {
	t.Parallel()
	limited, passes := context.WithCancel(t.Context()) // in place of the time
	url, others := silentServer(t, passes)
	s, err := readStatusWithin(limited, runningAt(t, url), "", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	if s.State != stateNotReady || s.Problem != "it does not answer" || others.Load() != 0 {
		t.Errorf("got state %q, problem %q and %d requests after the time, want none", s.State, s.Problem, others.Load())
	}
}

// Somebody who interrupts the command does not want to hear that the server is not ready.
func TestStatusThatIsInterrupted(t *testing.T) {
	t.Parallel()
	ctx, interrupt := context.WithCancel(t.Context())
	url, others := silentServer(t, interrupt)
	s, err := readStatus(ctx, runningAt(t, url), "", time.Now())
	if !errors.Is(err, context.Canceled) || s != nil || others.Load() != 0 {
		t.Errorf("got %+v and %v after %d more requests, want the interruption", s, err, others.Load())
	}
}

// Root reads the directory of another user as that user: a link leads it to nothing of root's.
func TestReadAllAsOwner(t *testing.T) {
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
	s := readAll(t.Context(), []servers.Server{{DataDir: dir, PID: os.Getpid()}}, time.Now())[0]
	if s.State != stateUnknown || !strings.Contains(s.Problem, "permission denied") || os.Geteuid() != 0 {
		t.Errorf("got %+v as user %d, want one that may not be read", s, os.Geteuid())
	}
}
