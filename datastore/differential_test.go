package datastore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore/backup"
)

// source returns the choices of a run, from a random generator or from a fuzz input.
type source interface{ pick(n int) int }

type randomSource struct{ *rand.Rand }

func (r randomSource) pick(n int) int { return r.IntN(n) }

type byteSource struct {
	data []byte
	pos  int
}

func (b *byteSource) pick(n int) int {
	if b.pos >= len(b.data) {
		return 0
	}
	b.pos++
	return int(b.data[b.pos-1]) % n
}

func (b *byteSource) done() bool { return b.pos >= len(b.data) }

// run applies the same choices to an engine and to the model.
type run struct {
	t       *testing.T
	s       source
	e       *Engine
	m       *model
	watches []*modelWatch
	mode    Durability
	reopen  func(kill bool) *Engine
	written int64 // the newest revision that a kill must not lose
	lost    int   // number of revisions that kills have lost
	n       int
}

// beats is the prefix of the keys whose updates mode Relaxed defers: a third of all keys.
const beats = "/a/"

type modelWatch struct {
	w        *Watcher
	key, end string
	next     int64
}

func (r *run) key() string { return fmt.Sprintf("/%c/%d", 'a'+rune(r.s.pick(3)), r.s.pick(4)) }

func (r *run) keys() (key, end string) {
	switch r.s.pick(4) {
	case 0:
		return "/", PrefixEnd("/")
	case 1:
		p := fmt.Sprintf("/%c/", 'a'+rune(r.s.pick(3)))
		return p, PrefixEnd(p)
	case 2:
		return r.key(), r.key()
	}
	return r.key(), ""
}

func (r *run) revision() int64 {
	if r.s.pick(2) == 0 {
		return 0
	}
	return max(0, r.m.revision+1-int64(r.s.pick(20)))
}

func (r *run) rangeRequest() *RangeRequest {
	req := &RangeRequest{Revision: r.revision(), Limit: int64(r.s.pick(4)), KeysOnly: r.s.pick(5) == 0, CountOnly: r.s.pick(5) == 0}
	req.Key, req.End = r.keys()
	return req
}

func (r *run) ops() []Op {
	ops := make([]Op, r.s.pick(4))
	for i := range ops {
		switch r.s.pick(5) {
		case 0:
			ops[i].Range = r.rangeRequest()
		case 1:
			d := &DeleteRequest{PrevKV: r.s.pick(2) == 0}
			d.Key, d.End = r.keys()
			ops[i].Delete = d
		default:
			r.n++
			ops[i].Put = &PutRequest{Key: r.key(), Value: []byte(fmt.Sprint("v", r.n)), PrevKV: r.s.pick(2) == 0}
		}
	}
	return ops
}

func (r *run) txn() TxnRequest {
	req := TxnRequest{Then: r.ops(), Else: r.ops()}
	for range r.s.pick(3) {
		c := Compare{Target: CompareTarget(r.s.pick(5)), Result: CompareResult(r.s.pick(4)), Number: r.m.revision - int64(r.s.pick(6)), Value: []byte(fmt.Sprint("v", r.n-r.s.pick(5)))}
		if c.Target == CompareVersion {
			c.Number = int64(r.s.pick(3))
		}
		c.Key, c.End = r.keys()
		req.Compare = append(req.Compare, c)
	}
	return req
}

func (r *run) same(what string, got, want string) {
	r.t.Helper()
	if got != want {
		r.t.Fatalf("%s at revision %d, compacted %d:\n got %s\nwant %s", what, r.m.revision, r.m.compacted, got, want)
	}
}

// step makes one call to both. It compares the answers, and then the statistics of the engine.
func (r *run) step() {
	r.t.Helper()
	r.act()
	keys, bytes := r.m.size()
	s := r.e.Stats()
	r.same("keys and their bytes", fmt.Sprint(s.Keys, s.LiveBytes), fmt.Sprint(keys, bytes))
}

func (r *run) act() {
	ctx := r.t.Context()
	switch n := r.s.pick(40); {
	case n < 20:
		req := r.txn()
		if err := checkTxn(&req); err != nil {
			_, got := r.e.Txn(ctx, req)
			r.same("refused txn", show(nil, got), show(nil, err))
			return
		}
		r.commit(req)
	case n < 30:
		req := *r.rangeRequest()
		got, err := r.e.Range(ctx, req)
		want, wantErr := r.m.get(req, r.m.state(), r.m.revision)
		r.same(fmt.Sprintf("range %+v", req), show(got, err), show(want, wantErr))
	case n < 32:
		revision := r.m.revision + 1 - int64(r.s.pick(12))
		err := r.e.Compact(ctx, revision, r.s.pick(2) == 0)
		wantErr := r.m.compact(revision)
		r.same(fmt.Sprint("compact ", revision), show(nil, err), show(nil, wantErr))
		if err == nil {
			r.dropOvertaken()
			r.written = r.m.revision
		}
	case n < 35:
		w := &modelWatch{next: r.revision()}
		w.key, w.end = r.keys()
		var err error
		w.w, err = r.e.Watch(WatchRequest{Key: w.key, End: w.end, StartRevision: w.next, PrevKV: true})
		if w.next == 0 {
			w.next = r.m.revision + 1
		}
		var want error
		if w.next < r.m.compacted {
			want = ErrCompacted
		}
		r.same(fmt.Sprint("watch from ", w.next), show(nil, err), show(nil, want))
		if err == nil {
			r.watches = append(r.watches, w)
		}
	case n < 39:
		if len(r.watches) > 0 {
			r.follow(r.watches[r.s.pick(len(r.watches))])
		}
	default:
		if r.reopen != nil && r.s.pick(4) == 0 {
			r.restart(r.s.pick(2) == 0)
		}
	}
}

func (r *run) commit(req TxnRequest) {
	r.t.Helper()
	got, err := r.e.Txn(r.t.Context(), req)
	want, wantErr := r.m.txn(req)
	r.same(fmt.Sprintf("txn %+v", req), show(got, err), show(want, wantErr))
	for _, event := range slices.Backward(r.m.events) {
		if event.KV.ModRevision <= r.written {
			break
		}
		if r.mode != Relaxed || event.Type == EventDelete || event.IsCreate() || !strings.HasPrefix(event.KV.Key, beats) {
			r.written = event.KV.ModRevision // and everything before it
			break
		}
	}
}

// restart stops or kills the engine, and opens the file again.
func (r *run) restart(kill bool) {
	r.t.Helper()
	if kill {
		for range 2 + r.s.pick(4) { // the first one may create the key
			r.n++
			r.commit(TxnRequest{Then: []Op{{Put: &PutRequest{Key: beats + "0", Value: []byte(fmt.Sprint("v", r.n))}}}})
		}
	}
	r.watches = nil
	r.e = r.reopen(kill)
	if kill && r.mode == Relaxed && r.e.Revision() != r.m.revision {
		r.lose()
	}
	r.same("after opening again", fmt.Sprint(r.e.Revision(), r.e.CompactRevision()), fmt.Sprint(r.m.revision, r.m.compacted))
	r.written = r.m.revision
	wantSound(r.t, r.e)
}

// lose makes the model what a kill in mode Relaxed has left: one of the states since the newest write that was not
// deferred, as a whole, at a new revision and without history.
func (r *run) lose() {
	r.t.Helper()
	all := RangeRequest{Key: "/", End: PrefixEnd("/")}
	got, err := r.e.Range(r.t.Context(), all)
	if err != nil {
		r.t.Fatal(err)
	}
	now := r.e.Revision()
	got.Revision = 0
	for revision := r.m.revision; revision >= r.written; revision-- {
		state := r.m.states[revision]
		if want, err := r.m.get(all, state, 0); err == nil && describe(want) == describe(got) {
			if now <= r.m.revision || r.e.CompactRevision() != now {
				r.t.Fatalf("after a kill: revision %d, compacted %d; acknowledged was %d", now, r.e.CompactRevision(), r.m.revision)
			}
			r.lost += int(r.m.revision - revision)
			*r.m = model{revision: now, compacted: now, states: map[int64]map[string]KeyValue{now: state}}
			return
		}
	}
	r.t.Fatalf("after a kill: none of the states of revisions %d to %d: %s", r.written, r.m.revision, describe(got))
}

// dropOvertaken closes watches that compaction may have overtaken. Whether such a watch fails
// depends on what it has read.
func (r *run) dropOvertaken() {
	var kept []*modelWatch
	for _, w := range r.watches {
		if w.next > r.m.compacted {
			kept = append(kept, w)
		} else {
			w.w.Close()
		}
	}
	r.watches = kept
}

// follow reads a watch to the end and compares every event.
func (r *run) follow(w *modelWatch) {
	r.t.Helper()
	want := r.m.since(w.next, w.key, w.end)
	var got []Event
	w.w.RequestProgress()
	for {
		resp, err := w.w.Next(r.t.Context())
		if err != nil {
			r.t.Fatalf("watch from %d: %v", w.next, err)
		}
		if len(resp.Events) == 0 {
			if resp.Revision != r.m.revision {
				r.t.Fatalf("progress: revision %d, want %d", resp.Revision, r.m.revision)
			}
			break
		}
		got = append(got, resp.Events...)
	}
	r.same(fmt.Sprintf("watch [%q,%q) from %d", w.key, w.end, w.next), describe(got), describe(want))
	w.next = max(w.next, r.m.revision+1)
}

func TestEngineAgreesWithTheModel(t *testing.T) {
	t.Parallel()
	for _, mode := range []Durability{Memory, Full, Relaxed} {
		t.Run(mode.String(), func(t *testing.T) {
			steps, seeds := 3000, 6
			if testing.Short() {
				steps, seeds = 1000, 2
			}
			lost := 0
			for n := range seeds {
				lost += differential(t, mode, []time.Duration{time.Hour, 3 * time.Millisecond}[n%2], rand.Uint64(), steps)
			}
			if (lost > 0) != (mode == Relaxed) {
				t.Errorf("kills have lost %d revisions; they lose deferred updates, in mode relaxed only", lost)
			}
		})
	}
}

// differential returns how many revisions kills have lost.
func differential(t *testing.T, mode Durability, deferred time.Duration, seed uint64, steps int) int {
	t.Logf("seed %d, updates deferred for %v", seed, deferred)
	// A cache of a few values, so that most are read from the disk.
	opts := Options{Durability: mode, CacheBytes: 200, BallastBytes: -1, syncInterval: time.Millisecond,
		DeferredPrefix: beats, deferredInterval: deferred}
	dir := t.TempDir()
	e, lock := openLocked(t, dir, opts)
	r := &run{t: t, s: randomSource{rand.New(rand.NewPCG(seed, 1))}, e: e, m: newModel(), mode: mode}
	if mode != Memory {
		r.reopen = func(kill bool) *Engine {
			if kill {
				crash(t, r.e)
			} else if err := r.e.Close(); err != nil {
				t.Fatal(err)
			}
			lock.Close()
			e, lock = openLocked(t, dir, opts)
			return e
		}
	}
	defer func() { r.e.Close(); lock.Close() }()
	for range steps {
		r.step()
		if t.Failed() {
			return r.lost
		}
	}
	for _, w := range r.watches {
		r.follow(w)
	}
	if mode != Memory {
		r.restart(true)
		r.restart(false) // this writes deferred updates
		scanned, err := backup.ReadStats(t.Context(), r.e.Source())
		if err != nil {
			t.Fatal(err)
		}
		s := r.e.Stats()
		r.same("keys and their bytes beside a scan of the file", fmt.Sprint(s.Keys, s.LiveBytes), fmt.Sprint(scanned.Keys, scanned.LiveBytes))
	}
	return r.lost
}

// FuzzEngine reads its input as a sequence of choices of the differential test.
func FuzzEngine(f *testing.F) {
	for seed := range uint64(3) {
		data := make([]byte, 600)
		source := rand.New(rand.NewPCG(seed, 7))
		for i := range data {
			data[i] = byte(source.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		e := openTest(t, "", Options{Durability: Memory})
		s := &byteSource{data: data}
		r := &run{t: t, s: s, e: e, m: newModel()}
		for !s.done() {
			r.step()
		}
		for _, w := range r.watches {
			r.follow(w)
		}
	})
}
