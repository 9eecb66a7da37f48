//go:build linux

package durability

import (
	"cmp"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
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
	began := time.Now()
	s.check()
	s.row.check = time.Since(began)
	s.notices()
}

// notices plants faults into what was seen, which the checks have to find.
func (s *several) notices() {
	s.t.Helper()
	longest := slices.MaxFunc(s.replays, func(a, b *replay) int { return cmp.Compare(len(a.changes), len(b.changes)) })
	n := len(longest.changes) / 2
	lost := *longest
	lost.changes = slices.Concat(longest.changes[:n], longest.changes[n+1:])
	if agree(append(slices.Clone(s.replays), &lost)) == nil {
		s.t.Errorf("the checks do not notice that a watch lacks the event %v", longest.changes[n])
	}
	c := longest.changes[n]
	again := Event{Type: c.kind, Object: Object{Metadata: Metadata{Name: c.key, ResourceVersion: fmt.Sprint(c.revision), Annotations: map[string]string{ValueAnnotation: c.version.value}}}}
	if repeated := *longest; repeated.add(again) == nil {
		s.t.Errorf("the checks do not notice that a watch has the event %v again", c)
	}
	// A read that finds an earlier value, after a call has returned that saw a later one: a write was lost, or the
	// read is stale. The history ends there, so that the check is quick.
	n = slices.IndexFunc(longest.changes, func(c change) bool { return c.kind == "MODIFIED" && c.key == "object-0" })
	if n < 0 {
		s.t.Fatal("no watch has seen an update")
	}
	old := longest.changes[n].version
	now := int64(math.MaxInt64)
	ops := slices.DeleteFunc(slices.Clone(s.ops), func(op porcupine.Operation) bool { return op.Input.(input).key != "object-0" })
	for _, op := range ops {
		if out := op.Output.(answer); out.ok && out.found.rv > old.rv {
			now = min(now, op.Return)
		}
	}
	if now == math.MaxInt64 {
		s.t.Fatalf("no call has seen a later version of object-0 than %v", old)
	}
	stale := porcupine.Operation{ClientId: severalClients, Input: input{key: "object-0"}, Output: answer{ok: true, found: old}, Call: now + 1, Return: now + 2}
	if got := checkWithin(append(until(ops, now), stale), severalLimit); got != porcupine.Illegal {
		s.t.Errorf("a read after a later version finds %v; the check says %v, want %v", old, got, porcupine.Illegal)
	}
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
