//go:build linux

package durability

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/anishathalye/porcupine"
)

// load runs clients and watches until end.
func (s *several) load() {
	for _, p := range s.servers {
		s.clients.Go(func() { s.probe(p) })
	}
	for c := range severalClients {
		s.clients.Go(func() { s.client(c) })
	}
	s.clients.Go(s.employ)
	s.t.Cleanup(s.watching.Wait)
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
	answered, err := writeOwn(ctx, p.api.Load(), s.journal, s.in, name)
	if err != nil {
		s.t.Errorf("server %s: %v", p.name, err)
	}
	if err != nil || !answered {
		return !answered, err
	}
	p.acks.Add(1)
	known, _ := s.journal.Known(name)
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
				s.relisted++
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
