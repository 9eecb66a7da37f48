//go:build linux

package durability

import (
	"fmt"
	"math"
	"net/http"
	"strings"
	"time"
)

// end stops the load, and checks everything that was seen.
func (s *several) end() {
	s.t.Helper()
	s.work(s.servers[0], s.servers[1])
	s.stop()
	s.clients.Wait()
	s.continues()
	s.fenced()

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
	s.check()
	events := 0
	for _, r := range s.replays {
		events += len(r.changes)
	}
	s.t.Logf("%d writes acknowledged; watches had %d events, and listed %d times again", s.servers[0].acks.Load()+s.servers[1].acks.Load(), events, s.relisted)
}
