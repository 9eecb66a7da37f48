package durability

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
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
	ending   chan struct{}
	clients  sync.WaitGroup
	watching sync.WaitGroup
	last     string // the object that ends the watches
	row      severalRow

	// With mu of the history:
	open    []porcupine.Operation // without an answer
	replays []*replay
}

// A peer is one of the servers.
type peer struct {
	*testServer
	name    string
	network *network // nil: loopback
	api     atomic.Pointer[API]
	well    atomic.Bool  // it answers consistent reads
	acks    atomic.Int64 // the writes that it has acknowledged
}

// A severalRow is what a test has tried.
type severalRow struct {
	name                  string
	acknowledged, unknown int
	events, relisted      int
	handover              []time.Duration
	calls                 int
	check                 time.Duration
	result                string
}

// newSeveral starts two servers on a database of the given kind.
func newSeveral(t *testing.T, kind string) *several {
	t.Helper()
	program := binary(t)
	s := &several{history: newHistory(t, collections["configmaps"]), database: newSharedDatabase(t, kind), journal: NewJournal(), ending: make(chan struct{}), last: "last"}
	t.Setenv("KARVE_DATASTORE_ENDPOINT", s.database.endpoint) // an argument would show the password
	token := filepath.Join(t.TempDir(), "token")
	if out, err := exec.Command(program, "cluster-token", "create", token).CombinedOutput(); err != nil {
		t.Fatalf("karve cluster-token create: %v: %s", err, out)
	}
	for n := range s.servers {
		p := &peer{name: string(rune('A' + n)), network: newNetwork(t)}
		p.testServer = newServer(t, append([]string{"--cluster-token-file", token}, s.database.args...)...)
		if p.network != nil {
			p.Address, p.Wrap = p.network.address, p.network.wrap
			p.Args = append(p.Args, "--advertise-address", p.network.address)
		} else {
			p.Args = append(p.Args, "--advertise-address", fmt.Sprintf("192.0.2.%d", n+1))
		}
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
	return s
}

// up starts the server.
func (p *peer) up() {
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

// load runs clients and watches until end.
func (s *several) load() {
	for _, p := range s.servers {
		s.clients.Go(func() { s.probe(p) })
	}
	for c := range severalClients {
		s.clients.Go(func() { s.client(c) })
	}
	for _, p := range s.servers {
		for _, w := range []watcher{{home: p, from: p}, {home: p, from: s.other(p)}, {home: p, from: p, hops: true}} {
			s.watching.Go(func() { s.watch(&w) })
		}
	}
	s.work(s.servers[0], s.servers[1])
}

func (s *several) ended() bool {
	select {
	case <-s.ending:
		return true
	default:
		return false
	}
}

// limited is the context of one call. It outlives the load: a call that is broken off has no answer.
func (s *several) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.t.Context(), callLimit)
}

// probe finds out whether a server can be called, so that clients do not add a call without an
// answer to the history each time they try.
func (s *several) probe(p *peer) {
	for !s.ended() {
		ctx, cancel := s.limited()
		p.well.Store(p.api.Load().Do(ctx, http.MethodGet, "/api/v1/namespaces/default", nil, nil) == nil)
		cancel()
		time.Sleep(100 * time.Millisecond)
	}
}

// client calls both servers: mostly its own, and the other one when that does not answer.
func (s *several) client(c int) {
	known := map[string]version{}
	own := 0
	for ; !s.ended(); time.Sleep(rand.N(pause)) {
		p := s.servers[c%2]
		if !p.well.Load() || rand.IntN(4) == 0 {
			p = s.other(p)
		}
		if !p.well.Load() {
			continue
		}
		ctx, cancel := s.limited()
		var err error
		switch n := rand.IntN(20); {
		case n == 0:
			err = s.list(ctx, p.api.Load(), c, known)
		case n < 6:
			var open bool
			if open, err = s.write(ctx, p, fmt.Sprintf("own-%d-%d", c, own)); open {
				own++ // nobody knows how this one is
				err = errors.New("no answer")
			}
		default:
			err = s.try(ctx, p, c, known)
		}
		cancel()
		if err != nil {
			p.well.Store(false)
		}
	}
}

// try makes one call on an object that all clients share.
func (s *several) try(ctx context.Context, p *peer, c int, known map[string]version) error {
	in := nextInput(known, s.fresh())
	op := porcupine.Operation{ClientId: c, Input: in, Call: s.now()}
	out, err := s.call(ctx, p.api.Load(), in)
	op.Return = s.now()
	if err != nil {
		delete(known, in.key)
		if in.action != read {
			s.mu.Lock()
			defer s.mu.Unlock()
			op.Output = answer{unknown: true}
			s.open = append(s.open, op)
		}
		return err
	}
	op.Output = out
	s.saw(op)
	if out.ok && in.action != read {
		p.acks.Add(1)
	}
	remember(known, in, out)
	return nil
}

// write sets or deletes an object of the caller's own, through the journal. It reports whether
// there was no answer.
func (s *several) write(ctx context.Context, p *peer, name string) (open bool, err error) {
	w := Write{Collection: s.in.path, Object: Object{APIVersion: s.in.apiVersion, Kind: s.in.kind, Metadata: Metadata{Name: name}}, Value: s.fresh()}
	before, _ := s.journal.Known(name)
	if before.Present && rand.IntN(6) == 0 {
		w.Value = ""
	}
	if err := w.Do(ctx, p.api.Load(), s.journal, name); err != nil {
		s.t.Errorf("server %s: %v", p.name, err)
		return false, err
	}
	known, open := s.journal.Known(name)
	if open {
		return true, nil
	}
	p.acks.Add(1)
	if known.Present {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.writes[known.Revision] = change{key: name, version: version{known.Value, known.Revision}}
	}
	return false, nil
}

// fresh returns a value that no object has had.
func (s *several) fresh() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	return fmt.Sprint(s.serial)
}

// A watcher is a client that watches at home, from a list of its own or of the other server. If it
// hops, it goes on at the other server now and then. All go on after an end from their last revision.
type watcher struct {
	home, from *peer
	hops       bool
}

// watch watches until it has seen the last write.
func (s *several) watch(w *watcher) {
	var r *replay
	at := w.home
	for expired := 0; s.t.Context().Err() == nil; {
		if r == nil {
			l, err := s.read(s.t.Context(), w.from.api.Load(), "")
			if err != nil {
				time.Sleep(100 * time.Millisecond)
				continue
			}
			r = &replay{from: l, through: l.revision}
			s.mu.Lock()
			s.lists = append(s.lists, l)
			s.replays = append(s.replays, r)
			s.mu.Unlock()
			if _, ok := l.objects[s.last]; ok {
				return
			}
		}
		hop := len(r.changes) + 50 + rand.IntN(500)
		done := false
		err := s.follow(s.t.Context(), at.api.Load(), r, func() bool {
			expired = 0
			if n := len(r.changes); n > 0 {
				done = r.changes[n-1].key == s.last
			}
			return done || w.hops && len(r.changes) >= hop
		})
		switch {
		case done:
			return
		case errors.Is(err, ErrExpired):
			// A server that has just started does not know what was before. The other one may.
			if expired++; expired == 2 {
				r, expired = nil, 0
				s.mu.Lock()
				s.row.relisted++
				s.mu.Unlock()
			}
			at = s.other(at)
		case errors.Is(err, ErrRefused):
			s.t.Errorf("watch at server %s: %v", at.name, err)
			return
		case errors.Is(err, io.EOF):
			at = s.other(at)
		default:
			if err != nil {
				time.Sleep(100 * time.Millisecond)
			}
			at = w.home
		}
	}
}

// work waits until clients have got answers to many writes at each of some servers.
func (s *several) work(at ...*peer) {
	s.t.Helper()
	for _, p := range at {
		enough := p.acks.Load() + 100
		await(s.t, fmt.Sprintf("server %s acknowledges %d writes", p.name, enough), func() error {
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
		await(s.t, fmt.Sprintf("/readyz of server %s says %v", p.name, want), func() error {
			ctx, cancel := s.limited()
			defer cancel()
			err := p.api.Load().Do(ctx, http.MethodGet, "/readyz", nil, nil)
			if want == (err == nil) {
				return nil
			}
			return fmt.Errorf("got %v", err)
		})
	}
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
	await(s.t, "a server leads", func() error {
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

// handover does what ends the leadership of one server, and waits until the other has the lease.
func (s *several) handover(to *peer, end func()) {
	s.t.Helper()
	before, err := s.holder(to)
	if err != nil {
		s.t.Fatal(err)
	}
	began := time.Now()
	done := make(chan struct{})
	go func() { defer close(done); end() }()
	await(s.t, "server "+to.name+" leads", func() error {
		now, err := s.holder(to)
		if err == nil && now == before {
			err = fmt.Errorf("%s does", now)
		}
		return err
	})
	s.row.handover = append(s.row.handover, time.Since(began))
	<-done
}

// continues checks that controllers work, whoever runs them, and that a namespace can be deleted.
func (s *several) continues() {
	s.t.Helper()
	a, b := s.servers[0].api.Load(), s.servers[1].api.Load()
	name := "after-" + s.fresh()
	labels := map[string]any{"app": name}
	deployment := Object{APIVersion: "apps/v1", Kind: "Deployment", Metadata: Metadata{Name: name}, Spec: map[string]any{
		"replicas": 2, "selector": map[string]any{"matchLabels": labels},
		"template": map[string]any{"metadata": map[string]any{"labels": labels}, "spec": map[string]any{"containers": []any{map[string]any{"name": "c", "image": "none"}}}},
	}}
	ctx := s.t.Context()
	if err := a.Do(ctx, http.MethodPost, "/apis/apps/v1/namespaces/default/deployments", deployment, nil); err != nil {
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
	await(s.t, "the Deployment has its Pods", func() error {
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
	await(s.t, "the Namespace is gone", func() error {
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

// end stops the load, and checks everything that was seen.
func (s *several) end() {
	s.t.Helper()
	s.work(s.servers[0], s.servers[1])
	close(s.ending)
	s.clients.Wait()
	s.continues()

	// The last write ends the watches.
	ctx := s.t.Context()
	if err := s.servers[0].api.Load().Do(ctx, http.MethodPost, s.in.path, Object{APIVersion: s.in.apiVersion, Kind: s.in.kind,
		Metadata: Metadata{Name: s.last, Annotations: map[string]string{ValueAnnotation: s.fresh()}}}, nil); err != nil {
		s.t.Fatal(err)
	}
	watched := make(chan struct{})
	go func() { defer close(watched); s.watching.Wait() }()
	select {
	case <-watched:
	case <-time.After(severalLimit):
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, r := range s.replays {
			s.t.Logf("a watch from %d has come to %d", r.from.revision, r.through)
		}
		s.t.Fatalf("not every watch has seen the last write after %v", severalLimit)
	}

	// Both servers have all that was acknowledged, and the same at one revision.
	for _, p := range s.servers {
		call := s.now()
		l, err := s.read(ctx, p.api.Load(), "")
		if err != nil {
			s.t.Fatal(err)
		}
		s.listed(severalClients, l, map[string]version{}, call, false)
		exact, err := s.read(ctx, s.other(p).api.Load(), fmt.Sprintf("resourceVersion=%d&resourceVersionMatch=Exact", l.revision))
		if err != nil {
			s.t.Fatal(err)
		}
		s.lists = append(s.lists, exact)
		own := map[string]State{}
		for key, v := range l.objects {
			if strings.HasPrefix(key, "own-") {
				own[key] = State{true, v.value, v.rv}
			}
		}
		if err := s.journal.Compare(own, l.revision); err != nil {
			s.t.Errorf("server %s: %v", p.name, err)
		}
	}
	for _, op := range s.open { // it may still be carried out
		op.Return = math.MaxInt64
		s.ops = append(s.ops, op)
	}
	s.unknown = len(s.open)
	s.compare(s.replays)
	if err := agree(s.replays); err != nil {
		s.t.Error(err)
	}
	began := time.Now()
	s.check()
	s.row.check = time.Since(began)
	s.count()
}

// count fills in the row.
func (s *several) count() {
	r := &s.row
	r.calls, r.unknown = len(s.ops), s.unknown
	r.acknowledged = int(s.servers[0].acks.Load() + s.servers[1].acks.Load())
	for _, replay := range s.replays {
		r.events += len(replay.changes)
	}
	r.result = "ok"
	if s.t.Failed() {
		r.result = "FAILED"
	}
}

// await waits until a condition holds.
func await(t *testing.T, what string, holds func() error) {
	t.Helper()
	began := time.Now()
	for {
		err := holds()
		if err == nil {
			t.Logf("%s: after %.1f s", what, time.Since(began).Seconds())
			return
		}
		if time.Since(began) > severalLimit {
			t.Fatalf("%s: not after %v: %v", what, severalLimit, err)
		}
		time.Sleep(50 * time.Millisecond)
	}
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
