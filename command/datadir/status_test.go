package datadir

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/karve-k8s/karve/command/servers"
)

// Metrics tell of which leases a server is a candidate, and the API who leads if it does not.
func TestLeaders(t *testing.T) {
	t.Parallel()
	s := &ServerState{Memory: &memoryStatus{}}
	s.readMetrics([]byte("leader_election_master_status{name=\"kube-controller-manager\"} 1\nleader_election_master_status{name=\"kube-scheduler\"} 0\nother{name=\"x\"} 1\n"))
	for i := range s.Leases {
		s.Leases[i].readHolder(func(path string) ([]byte, error) {
			if path != "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/"+s.Leases[i].Name {
				return nil, errors.New(path)
			}
			return []byte(`{"spec":{"holderIdentity":"other_1"}}`), nil
		})
	}
	if got, want := fmt.Sprint(s.Leases), "[this server, of kube-controller-manager other_1, of kube-scheduler]"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := fmt.Sprint(leaseStatus{Name: "kube-scheduler"}); got != "unknown, of kube-scheduler" {
		t.Errorf("without a leader: got %s", got)
	}
}

func TestFailedChecks(t *testing.T) {
	t.Parallel()
	failure := errors.New("500")
	const verbose = "[+]ping ok\n[-]etcd failed: reason withheld\n[-]poststarthook/start failed: reason withheld\nreadyz check failed\n"
	reasons := func(path string) ([]byte, error) {
		if path == "/readyz/etcd" {
			return []byte("internal server error: it is\naway\n"), failure
		}
		return nil, failure
	}
	if got, want := failedChecks([]byte(verbose), failure, reasons), "failed checks: etcd (it is; away), poststarthook/start"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := failedChecks(nil, failure, reasons); got != "500" {
		t.Errorf("got %q, want the error", got)
	}
}

// Each of these servers answers when all have been asked. The one after the other would each be silent for as long as
// a server may take.
func TestServersAreAskedAtTheSameTime(t *testing.T) {
	t.Parallel()
	const number = 3
	var asked sync.WaitGroup
	asked.Add(number)
	var running []servers.Server
	for range number {
		var once sync.Once
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			once.Do(asked.Done)
			all := make(chan struct{})
			go func() { asked.Wait(); close(all) }()
			select {
			case <-all:
			case <-r.Context().Done():
			}
		}))
		t.Cleanup(s.Close)
		running = append(running, servers.Server{DataDir: runningAt(t, s.URL), PID: os.Getpid()})
	}
	for i, s := range readAll(t.Context(), running, time.Now()) {
		if s.State != stateReady || s.DataDir != running[i].DataDir {
			t.Errorf("server %d: got %+v, want the ready one in %s", i, s, running[i].DataDir)
		}
	}
}

// A server that runs has a datastore. If there is none in the data directory, it is not "none yet".
func TestADatastoreThatIsElsewhere(t *testing.T) {
	for state, want := range map[string]string{stateReady: "the server uses another", stateStopped: "none yet"} {
		s := ServerStatus{ServerState: ServerState{State: state, DataDir: t.TempDir()}}
		if err := s.readDatastore(t.Context(), "", s.DataDir); err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if s.serverTable(&out); !strings.Contains(out.String(), want) {
			t.Errorf("%s: got\n%s\nwant %q", state, out.String(), want)
		}
	}
}
