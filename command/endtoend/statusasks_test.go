package endtoend

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/status"
	"github.com/karve-k8s/karve/datastore/directory"
)

// runningAt returns a data directory whose lock the test holds, like a server that answers with handle. Other tests'
// karve status --all does not find it: it has no certificates.
func runningAt(t *testing.T, handle http.HandlerFunc) (dir string) {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lock.Close() })
	if err := certs.WriteKubeconfig(filepath.Join(dir, "admin.kubeconfig"), certs.Kubeconfig{Server: server.URL}); err != nil {
		t.Fatal(err)
	}
	return dir
}

// statusOfAll is `karve status --all`, which has these servers and those of other tests.
func statusOfAll(t *testing.T, dirs ...string) map[string]status.ServerState {
	t.Helper()
	for _, dir := range dirs {
		if err := os.Mkdir(filepath.Join(dir, "certs"), 0o711); err != nil {
			t.Fatal(err)
		}
	}
	var all []status.ServerState
	got := finish(t, command(t, "karve", "status", "--all", "-o", "json"))
	if err := json.Unmarshal([]byte(got.stdout), &all); err != nil {
		t.Fatalf("%+v: %v", got, err)
	}
	byDir := map[string]status.ServerState{}
	for _, s := range all {
		byDir[s.DataDir] = s
	}
	return byDir
}

// A server may be another user's, and answer anything.
func TestStatusLimitsAnswersAndFollowsNone(t *testing.T) {
	t.Parallel()
	var followed atomic.Bool
	var sent atomic.Int64
	dir := runningAt(t, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/readyz":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		case "/elsewhere":
			followed.Store(true)
		case "/metrics":
			for r.Context().Err() == nil { // without end
				n, err := io.WriteString(w, strings.Repeat("a", 1<<16))
				if sent.Add(int64(n)); err != nil {
					return
				}
			}
		}
	})
	if s := statusOf(t, dir, exitNotReady); s.State != "not ready" || !strings.Contains(s.Problem, "302") || followed.Load() {
		t.Errorf("got %+v, followed: %v, want a server that is not ready because it redirects", s, followed.Load())
	}
	// 16 MiB, and what is on its way.
	if n := sent.Load(); n < 16<<20 || n > 64<<20 {
		t.Errorf("of an answer without end, %d bytes were read", n)
	}
}

func TestStatusTellsFailedChecksAndLeaders(t *testing.T) {
	t.Parallel()
	var ready atomic.Bool
	dir := runningAt(t, func(w http.ResponseWriter, r *http.Request) {
		fail := func(text string) { http.Error(w, strings.TrimSuffix(text, "\n"), http.StatusInternalServerError) }
		switch {
		case strings.HasPrefix(r.URL.Path, "/readyz") && ready.Load():
		case r.URL.Path == "/readyz":
			fail("[+]ping ok\n[-]etcd failed: reason withheld\n[-]poststarthook/start failed: reason withheld\nreadyz check failed")
		case r.URL.Path == "/readyz/etcd":
			fail("internal server error: it is\naway")
		case r.URL.Path == "/metrics":
			for _, lease := range []string{"kube-controller-manager\"} 1", "kube-scheduler\"} 0", "karve\"} 0"} {
				io.WriteString(w, `leader_election_master_status{name="`+lease+"\n")
			}
		case r.URL.Path == "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler":
			io.WriteString(w, `{"spec":{"holderIdentity":"other_1"}}`)
		default:
			w.WriteHeader(http.StatusNotFound)
		}
	})
	got := finish(t, command(t, "karve", "status", "--data-dir", dir))
	wantOutput(t, got.stdout, "failed checks: etcd (it is; away), poststarthook/start\n", "this server, of kube-controller-manager", "other_1, of kube-scheduler", "unknown, of karve")
	ready.Store(true) // and its datastore is not in the data directory
	wantOutput(t, karve(t, "status", "--data-dir", dir), "the server uses another")
}

// A server that was stopped accepts connections and says nothing.
func TestStatusOfASilentServer(t *testing.T) {
	long(t)
	t.Parallel()
	dir := runningAt(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	if s := statusOf(t, dir, exitNotReady); s.State != "not ready" || s.Problem != "it does not answer" {
		t.Errorf("got state %q, problem %q, want that it does not answer", s.State, s.Problem)
	}
}

// Somebody who interrupts the command does not want to hear that the server is not ready.
func TestStatusThatIsInterrupted(t *testing.T) {
	t.Parallel()
	cmd := command(t, "karve", "status")
	dir := runningAt(t, func(_ http.ResponseWriter, r *http.Request) {
		cmd.Process.Signal(os.Interrupt)
		<-r.Context().Done()
	})
	cmd.Env = append(cmd.Env, "KARVE_DATA_DIR="+dir)
	wantProblems(t, finish(t, cmd), "karve: interrupt")
}

// Root reads the directory of another user as that user: a link leads it to nothing of root's.
func TestStatusOfAllReadsAsTheOwner(t *testing.T) {
	t.Parallel()
	dir := servicesDir(t)
	roots := runningAt(t, func(http.ResponseWriter, *http.Request) {})
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := errors.Join(os.Symlink(filepath.Join(roots, "admin.kubeconfig"), filepath.Join(dir, "admin.kubeconfig")), os.Chown(filepath.Join(dir, "lock"), nobodyID, nobodyID)); err != nil {
		t.Fatal(err)
	}
	found := statusOfAll(t, dir, roots)
	if s := found[dir]; s.State != "unknown" || !strings.Contains(s.Problem, "permission denied") {
		t.Errorf("got %+v, want one that may not be read", s)
	}
	if s := found[roots]; s.State != "ready" {
		t.Errorf("got %+v, want root's own server", s)
	}
}
