package datastore

import (
	"fmt"
	"math/rand/v2"
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
	reopen  func(*Engine) *Engine
	n       int
}

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
		got, err := r.e.Txn(ctx, req)
		want, wantErr := r.m.txn(req)
		r.same(fmt.Sprintf("txn %+v", req), show(got, err), show(want, wantErr))
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
			r.watches = nil
			r.e = r.reopen(r.e)
			r.same("after opening again", fmt.Sprint(r.e.Revision(), r.e.CompactRevision()), fmt.Sprint(r.m.revision, r.m.compacted))
		}
	}
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
	for _, mode := range []Durability{Memory, Full, Relaxed} {
		t.Run(mode.String(), func(t *testing.T) {
			steps, seeds := 3000, 6
			if testing.Short() {
				steps, seeds = 1000, 2
			}
			for range seeds {
				differential(t, mode, rand.Uint64(), steps)
			}
		})
	}
}

func differential(t *testing.T, mode Durability, seed uint64, steps int) {
	t.Logf("seed %d", seed)
	// A cache of a few values, so that most are read from the disk.
	opts := Options{Durability: mode, CacheBytes: 200, BallastBytes: -1, SyncInterval: time.Millisecond,
		DeferredPrefix: "/a/", DeferredInterval: 3 * time.Millisecond} // of a third of the keys; for mode Relaxed
	dir := t.TempDir()
	e, lock := openLocked(t, dir, opts)
	r := &run{t: t, s: randomSource{rand.New(rand.NewPCG(seed, 1))}, e: e, m: newModel()}
	if mode != Memory {
		r.reopen = func(e *Engine) *Engine {
			if mode == Full && r.s.pick(2) == 0 {
				crash(t, e)
			} else if err := e.Close(); err != nil {
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
			return
		}
	}
	for _, w := range r.watches {
		r.follow(w)
	}
	if mode == Relaxed { // this writes deferred updates
		r.e = r.reopen(r.e)
	}
	if mode != Memory {
		scanned, err := backup.ReadStats(t.Context(), r.e.Source())
		if err != nil {
			t.Fatal(err)
		}
		s := r.e.Stats()
		r.same("keys and their bytes beside a scan of the file", fmt.Sprint(s.Keys, s.LiveBytes), fmt.Sprint(scanned.Keys, scanned.LiveBytes))
	}
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
