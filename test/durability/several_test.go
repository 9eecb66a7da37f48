//go:build linux

package durability

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/karve-k8s/karve/internal/eventually"
)

const (
	severalClients = 16

	// callLimit ends a call that a server which is cut off does not answer.
	callLimit = 5 * time.Second

	// pause is how long a client waits between two calls at most, so that a fast machine does not
	// make a history that takes long to check.
	pause = 40 * time.Millisecond

	// severalLimit bounds what a test waits for. It is generous: the machine may be busy.
	severalLimit = 3 * time.Minute
)

// A several is two servers on one database, with what clients of both have seen. It ends with
// the test.
type several struct {
	history
	database sharedDatabase
	servers  [2]*peer
	journal  *Journal // of objects with one writer each
	fencer   *Fencer
	ending   chan struct{}
	stop     func() // closes ending
	clients  sync.WaitGroup
	watching sync.WaitGroup
	last     string // the object that ends the watches

	// With mu of the history:
	open     []porcupine.Operation // without an answer
	replays  []*replay
	relisted int // watches that had to list again
}

// A peer is one of the servers.
type peer struct {
	*testServer
	name    string
	network *network // nil: loopback
	args    []string // of every life
	audits  []string // the audit logs, one for each life
	api     atomic.Pointer[API]
	well    atomic.Bool  // it answers consistent reads
	acks    atomic.Int64 // the writes that it has acknowledged
}

// newSeveral starts two servers on a database of the given kind.
func newSeveral(t *testing.T, kind string) *several {
	t.Helper()
	program := binary(t)
	s := &several{history: newHistory(t, collections["configmaps"]), database: newSharedDatabase(t, kind), journal: NewJournal(), ending: make(chan struct{}), last: "last"}
	s.stop = sync.OnceFunc(func() { close(s.ending) })
	t.Setenv("KARVE_DATASTORE_ENDPOINT", s.database.endpoint) // an argument would show the password
	token := filepath.Join(t.TempDir(), "token")
	if out, err := exec.Command(program, "cluster-token", "create", token).CombinedOutput(); err != nil {
		t.Fatalf("karve cluster-token create: %v: %s", err, out)
	}
	policy := filepath.Join(t.TempDir(), "audit.yaml")
	if err := os.WriteFile(policy, []byte(AuditPolicy), 0o600); err != nil {
		t.Fatal(err)
	}
	for n := range s.servers {
		p := &peer{name: string(rune('A' + n)), network: newNetwork(t)}
		p.testServer = newServer(t, append([]string{"--cluster-token-file", token, "--simulate-nodes", "1", "--audit-policy-file", policy}, s.database.args...)...)
		if p.network != nil {
			p.Address, p.Wrap = p.network.address, p.network.wrap
			p.Args = append(p.Args, "--advertise-address", p.network.address)
		} else {
			p.Args = append(p.Args, "--advertise-address", fmt.Sprintf("192.0.2.%d", n+1))
		}
		p.args = p.Args
		s.servers[n] = p
	}
	var starting sync.WaitGroup
	for _, p := range s.servers {
		starting.Go(func() { p.up() })
	}
	starting.Wait()
	if t.Failed() {
		t.FailNow()
	}
	var err error
	if s.fencer, err = NewFencer(t.Context(), s.apis); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.fencer.Close)
	return s
}

// apis are clients of both servers.
func (s *several) apis() []*API { return []*API{s.servers[0].api.Load(), s.servers[1].api.Load()} }

// up starts the server.
func (p *peer) up() {
	audit := filepath.Join(p.t.TempDir(), "audit.log")
	p.audits = append(p.audits, audit)
	p.Args = append([]string{"--audit-log-path", audit}, p.args...)
	api, err := p.Start(p.t.Context())
	if err != nil {
		p.t.Errorf("server %s: %v", p.name, err)
		return
	}
	p.api.Store(api)
}

// other is the other server.
func (s *several) other(p *peer) *peer {
	if p == s.servers[0] {
		return s.servers[1]
	}
	return s.servers[0]
}

// work waits until clients have got answers to many writes at each of some servers.
func (s *several) work(at ...*peer) {
	s.t.Helper()
	for _, p := range at {
		enough := p.acks.Load() + 100
		eventually.Nil(s.t, fmt.Sprintf("server %s acknowledges %d writes", p.name, enough), func() error {
			if n := p.acks.Load(); n < enough {
				return fmt.Errorf("it has acknowledged %d", n)
			}
			return nil
		})
	}
}

// ready waits until /readyz of the servers is as wanted.
func (s *several) ready(want bool, at ...*peer) {
	s.t.Helper()
	for _, p := range at {
		if err := s.says(want, p); err != nil {
			s.t.Fatal(err)
		}
	}
}

// says waits until /readyz of a server is as wanted.
func (s *several) says(want bool, p *peer) error {
	return eventually.Poll(func() error {
		ctx, cancel := s.limited()
		defer cancel()
		err := p.api.Load().Do(ctx, http.MethodGet, "/readyz", nil, nil)
		if want == (err == nil) {
			return nil
		}
		return fmt.Errorf("/readyz of server %s: got %v, want success: %v", p.name, err, want)
	})
}

// controllersLease is upstream's.
const controllersLease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-controller-manager"

// holder is who holds the controllers' lease, by a server.
func (s *several) holder(p *peer) (string, error) {
	ctx, cancel := s.limited()
	defer cancel()
	var lease Object
	err := p.api.Load().Do(ctx, http.MethodGet, controllersLease, nil, &lease)
	holder, _ := lease.Spec["holderIdentity"].(string)
	if err == nil && holder == "" {
		err = errors.New("nobody holds the lease of the controllers")
	}
	return holder, err
}

// leader is the server that runs the controllers.
func (s *several) leader() *peer {
	s.t.Helper()
	var leads *peer
	eventually.Nil(s.t, "a server leads", func() error {
		for _, p := range s.servers {
			page, err := p.api.Load().Metrics(s.t.Context())
			if err != nil {
				return err
			}
			if strings.Contains(string(page), "\nleader_election_master_status{name=\"kube-controller-manager\"} 1\n") {
				leads = p
				return nil
			}
		}
		return errors.New("none")
	})
	return leads
}

// handover does what ends the leadership of one server, and waits until the other has the lease. end runs beside the
// test, so it returns errors.
func (s *several) handover(to *peer, end func() error) {
	s.t.Helper()
	before, err := s.holder(to)
	if err != nil {
		s.t.Fatal(err)
	}
	began := time.Now()
	done := make(chan error, 1)
	s.clients.Go(func() { done <- end() })
	eventually.Nil(s.t, "server "+to.name+" leads", func() error {
		now, err := s.holder(to)
		if err == nil && now == before {
			err = fmt.Errorf("%s does", now)
		}
		return err
	})
	s.t.Logf("the handover took %.1f s", time.Since(began).Seconds())
	if err := <-done; err != nil {
		s.t.Fatal(err)
	}
}

// continues checks that controllers work, whoever runs them, and that a namespace can be deleted.
func (s *several) continues() {
	s.t.Helper()
	a, b := s.servers[0].api.Load(), s.servers[1].api.Load()
	name := "after-" + s.fresh()
	ctx := s.t.Context()
	if err := a.Do(ctx, http.MethodPost, "/apis/apps/v1/namespaces/default/deployments", Deployment(name, 2), nil); err != nil {
		s.t.Fatal(err)
	}
	namespace := Object{APIVersion: "v1", Kind: "Namespace", Metadata: Metadata{Name: name}}
	inside := Object{APIVersion: "v1", Kind: "ConfigMap", Metadata: Metadata{Name: "inside"}}
	for _, err := range []error{
		b.Do(ctx, http.MethodPost, "/api/v1/namespaces", namespace, nil),
		a.Do(ctx, http.MethodPost, "/api/v1/namespaces/"+name+"/configmaps", inside, nil),
		b.Do(ctx, http.MethodDelete, "/api/v1/namespaces/"+name, nil, nil),
	} {
		if err != nil {
			s.t.Fatal(err)
		}
	}
	eventually.Nil(s.t, "the Deployment has its Pods", func() error {
		for path, want := range map[string]int{"/apis/apps/v1/namespaces/default/replicasets": 1, "/api/v1/namespaces/default/pods": 2} {
			found, _, err := b.List(ctx, path, "labelSelector=app%3D"+name)
			if err == nil && len(found) != want {
				err = fmt.Errorf("%s has %d, want %d", path, len(found), want)
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	eventually.Nil(s.t, "the Namespace is gone", func() error {
		err := a.Do(ctx, http.MethodGet, "/api/v1/namespaces/"+name, nil, nil)
		switch {
		case Refused(err) == http.StatusNotFound:
			return nil
		case err == nil:
			err = errors.New("it is there")
		}
		return err
	})
}

// get reads a page without TLS.
func get(url string) (string, error) {
	client := http.Client{Timeout: callLimit}
	resp, err := client.Get(url)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	page, err := io.ReadAll(resp.Body)
	return string(page), err
}
