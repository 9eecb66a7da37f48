package datastore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/sqlitefile"
)

// keptModel is the model of a store whose updates of /beat/ are deferred. It knows what a kill may lose.
type keptModel struct {
	*model
	written  int64 // the newest revision that a kill must not lose
	inFlight *Op   // a write without an answer, when its process was killed
}

func newKeptModel() *keptModel { return &keptModel{model: newModel(), written: 1} }

// write does what an engine in the mode has to do. In mode Relaxed, a kill may lose plain updates of /beat/ until the
// next other write. An operation that changes nothing is no write.
func (m *keptModel) write(op Op, mode Durability) (*TxnResponse, error) {
	before, deferred := m.revision, false
	if mode == Relaxed && op.Put != nil && strings.HasPrefix(op.Put.Key, "/beat/") {
		_, deferred = m.state()[op.Put.Key]
	}
	resp, err := m.txn(TxnRequest{Then: []Op{op}})
	if !deferred && m.revision > before {
		m.written = m.revision
	}
	return resp, err
}

func (m *keptModel) compact(revision int64) error {
	err := m.model.compact(revision)
	m.written = m.revision
	return err
}

// everything is a range of all keys.
var everything = RangeRequest{Key: "/", End: PrefixEnd("/")}

// keysOf describes the keys of an engine, without its revision.
func keysOf(t *testing.T, e *Engine) (string, []KeyValue) {
	t.Helper()
	resp, err := e.Range(t.Context(), everything)
	if err != nil {
		t.Fatal(err)
	}
	resp.Revision = 0
	return describe(resp), resp.KVs
}

// wantFound checks what a start found after a kill, or in the backup of an engine in use: one of the states since the
// newest write that a kill must not lose, as a whole. Unless nothing was written in mode Relaxed since the
// start before, it has a new revision, and no history.
func (m *keptModel) wantFound(t *testing.T, what string, e *Engine, mode Durability) {
	t.Helper()
	oldest := m.written
	switch now := e.Revision(); {
	case now == m.revision:
		oldest = now
		if e.CompactRevision() != m.compacted {
			t.Fatalf("%s: compacted to %d, want %d as before", what, e.CompactRevision(), m.compacted)
		}
	case mode != Relaxed || now < m.revision:
		t.Fatalf("%s in mode %v: the newest revision is %d, acknowledged was %d", what, mode, now, m.revision)
	case now != e.CompactRevision():
		t.Fatalf("%s: revision %d, compacted to %d: there is history from before an unclean stop", what, now, e.CompactRevision())
	case m.inFlight != nil: // it may have happened
		m.txn(TxnRequest{Then: []Op{*m.inFlight}})
	}
	got, _ := keysOf(t, e)
	for revision := m.revision; revision >= oldest; revision-- {
		if want, err := m.get(everything, m.states[revision], 0); err == nil && describe(want) == got {
			return
		}
	}
	t.Fatalf("%s: none of the states from revision %d to %d:\n got %s\nwant %s or earlier", what, oldest, m.revision, got, show(m.get(everything, m.state(), 0)))
}

// continueWith makes what an engine found the state of the model.
func (m *keptModel) continueWith(t *testing.T, e *Engine) {
	t.Helper()
	m.inFlight = nil
	if e.Revision() == m.revision {
		return
	}
	state := map[string]KeyValue{}
	_, kvs := keysOf(t, e)
	for _, kv := range kvs {
		state[kv.Key] = kv
	}
	m.model = &model{revision: e.Revision(), compacted: e.CompactRevision(), states: map[int64]map[string]KeyValue{e.Revision(): state}}
	m.written = m.revision
}

// wantHistory compares reads at some revisions, and a watch, with the model.
func (m *keptModel) wantHistory(t *testing.T, s source, e *Engine) {
	t.Helper()
	r := &run{t: t, s: s, e: e, m: m.model}
	revision := func() int64 { return max(1, m.compacted+int64(s.pick(int(m.revision-m.compacted+1)))) }
	for range 10 {
		reads := []RangeRequest{everything}
		for _, key := range deferredHistoryKeys {
			reads = append(reads, RangeRequest{Key: key})
		}
		at := revision()
		for _, req := range reads {
			req.Revision = at
			got, err := e.Range(t.Context(), req)
			want, wantErr := m.get(req, m.state(), m.revision)
			r.same(fmt.Sprintf("%s at %d", req.Key, at), show(got, err), show(want, wantErr))
		}
	}
	w := &modelWatch{key: everything.Key, end: everything.End, next: revision()}
	var err error
	if w.w, err = e.Watch(WatchRequest{Key: w.key, End: w.end, StartRevision: w.next, PrevKV: true}); err != nil {
		t.Fatalf("watch from %d: %v", w.next, err)
	}
	defer w.w.Close()
	r.follow(w)
}

// wantSoundFile verifies a database that no engine has open.
func wantSoundFile(t *testing.T, dir string) {
	t.Helper()
	v, err := backup.Verify(t.Context(), sqlitefile.ClosedFile(filepath.Join(dir, EngineFile)), nil)
	if err == nil {
		err = v.Err()
	}
	if err != nil {
		t.Fatal(err)
	}
}

// deferredHistoryKeys are the keys of these tests.
var deferredHistoryKeys = []string{"/beat/a", "/beat/b", "/beat/c", "/beat/d", "/other/a", "/other/b", "/other/c"}

// deferredHistoryKey picks a key. Most are deferred.
func deferredHistoryKey(s source) string {
	if s.pick(3) > 0 {
		return deferredHistoryKeys[s.pick(4)]
	}
	return deferredHistoryKeys[s.pick(len(deferredHistoryKeys))]
}

// A deferredHistory makes the same random calls to an engine and to its model, across stops, kills and changes of the mode.
type deferredHistory struct {
	t    *testing.T
	s    source
	m    *keptModel
	dir  string
	opts Options
	e    *Engine
	lock *directory.Lock
	n    int // puts
}

func newDeferredHistory(t *testing.T, seed uint64) *deferredHistory {
	h := &deferredHistory{t: t, s: randomSource{rand.New(rand.NewPCG(seed, 3))}, m: newKeptModel(), dir: t.TempDir()}
	// Deferred updates are written at any moment, or only with other writes.
	h.opts = relaxed([]time.Duration{time.Millisecond, time.Hour}[h.s.pick(2)])
	// The cache has some values, most, or all.
	h.opts.CacheBytes = []int64{2 << 10, 20 << 10, 1 << 20}[h.s.pick(3)]
	h.e, h.lock = openLocked(t, h.dir, h.opts)
	t.Cleanup(func() { h.e.Close(); h.lock.Close() })
	return h
}

func (h *deferredHistory) same(what, got, want string) {
	h.t.Helper()
	(&run{t: h.t, m: h.m.model}).same(what, got, want)
}

// step makes one call, most often a put.
func (h *deferredHistory) step() {
	h.t.Helper()
	switch n := h.s.pick(200); {
	case n < 4:
		key := deferredHistoryKey(h.s)
		h.write("delete "+key, Op{Delete: &DeleteRequest{Key: key}})
	case n < 10:
		h.compact()
	case n < 13:
		h.check()
		h.backUp()
	case n < 15:
		h.restart()
	default:
		h.n++
		key := deferredHistoryKey(h.s)
		value := fmt.Sprint(h.n, strings.Repeat("x", h.s.pick(400)))
		h.write("put "+key, Op{Put: &PutRequest{Key: key, Value: []byte(value)}})
	}
}

func (h *deferredHistory) write(what string, op Op) {
	h.t.Helper()
	got, err := h.e.Txn(h.t.Context(), TxnRequest{Then: []Op{op}})
	want, wantErr := h.m.write(op, h.opts.Durability)
	h.same(what, show(got, err), show(want, wantErr))
}

func (h *deferredHistory) compact() {
	h.t.Helper()
	if h.m.revision == h.m.compacted {
		return
	}
	revision := h.m.compacted + 1 + int64(h.s.pick(int(h.m.revision-h.m.compacted)))
	err := h.e.Compact(h.t.Context(), revision, h.s.pick(3) == 0)
	h.same(fmt.Sprint("compact ", revision), show(nil, err), show(nil, h.m.compact(revision)))
}

// check verifies the file in use, and compares reads with the model.
func (h *deferredHistory) check() {
	h.t.Helper()
	wantSound(h.t, h.e)
	h.m.wantHistory(h.t, h.s, h.e)
}

// backUp makes a backup and opens it as it is.
func (h *deferredHistory) backUp() {
	h.t.Helper()
	dir := h.t.TempDir()
	if _, err := h.e.Backup(h.t.Context(), filepath.Join(dir, EngineFile), backup.Options{}); err != nil {
		h.t.Fatal(err)
	}
	e, lock := openLocked(h.t, dir, Options{Durability: []Durability{Full, Relaxed}[h.s.pick(2)]})
	defer lock.Close()
	defer e.Close()
	wantSound(h.t, e)
	h.m.wantFound(h.t, "in a backup", e, Relaxed) // a start from a backup raises the revision, as one after a kill
	if e.Revision() == h.m.revision {
		h.m.wantHistory(h.t, h.s, e)
	}
}

// restart stops or kills the engine and starts it again, perhaps in another mode.
func (h *deferredHistory) restart() {
	h.t.Helper()
	kill, before := h.s.pick(2) == 0, h.opts.Durability
	if kill {
		crash(h.t, h.e)
	} else if err := h.e.Close(); err != nil {
		h.t.Fatal(err)
	}
	h.lock.Close()
	wantSoundFile(h.t, h.dir)
	h.opts.Durability = []Durability{Full, Relaxed, Relaxed}[h.s.pick(3)]
	h.e, h.lock = openLocked(h.t, h.dir, h.opts)
	if kill {
		h.m.wantFound(h.t, "after a kill", h.e, before)
		h.m.continueWith(h.t, h.e)
	} else {
		h.same("after a stop in order", fmt.Sprint(h.e.Revision(), h.e.CompactRevision()), fmt.Sprint(h.m.revision, h.m.compacted))
		h.m.written = h.m.revision
	}
	h.check()
}

// TestHistoriesOfDeferredKeys compares random histories with a model: what is read and watched, and what a start
// finds after stops and kills and in backups. A kill loses deferred updates only, and only the newest. The file is
// sound all the time. KARVE_CRASHES sets roughly the number of kills; the default is four histories.
func TestHistoriesOfDeferredKeys(t *testing.T) {
	const kills = 5 // of one history, more or less
	histories := 4
	if n, err := strconv.Atoi(os.Getenv("KARVE_CRASHES")); err == nil {
		histories = max(1, n/kills)
	} else if testing.Short() {
		histories = 1
	}
	for range histories {
		seed := rand.Uint64()
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			h := newDeferredHistory(t, seed)
			for range 1000 {
				h.step()
			}
			h.check()
		})
	}
}

// deferring is the task of a child that writes deferred keys, in mode Relaxed.
const deferring = "deferring"

// deferringClient writes until the process is killed. It journals each call before it (put, key, value; delete, key;
// compact, revision) and after its answer (ack, revision).
func deferringClient(e *Engine, _ int) error {
	ctx, s := context.Background(), randomSource{rand.New(rand.NewPCG(rand.Uint64(), rand.Uint64()))}
	begin := strconv.FormatInt(time.Now().UnixNano(), 36)
	for i := 0; ; i++ {
		op := nextDeferring(s, fmt.Sprintf("%s-%d-%s", begin, i, strings.Repeat("x", s.pick(500))))
		resp, err := e.Txn(ctx, TxnRequest{Then: []Op{op}})
		if err != nil {
			return err
		}
		fmt.Printf("ack %d\n", resp.Revision)
		if to := resp.Revision - 10; s.pick(50) == 0 && to > e.CompactRevision() {
			fmt.Printf("compact %d\n", to)
			if err := e.Compact(ctx, to, s.pick(2) == 0); err != nil {
				return err
			}
			fmt.Printf("ack %d\n", resp.Revision)
		}
	}
}

// nextDeferring returns a write, and journals it.
func nextDeferring(s source, value string) Op {
	key := deferredHistoryKey(s)
	if s.pick(70) == 0 {
		fmt.Printf("delete %s\n", key)
		return Op{Delete: &DeleteRequest{Key: key}}
	}
	fmt.Printf("put %s %s\n", key, value)
	return Op{Put: &PutRequest{Key: key, Value: []byte(value)}}
}

// deferredKills are kills of processes that write deferred keys, one after the other in one directory.
type deferredKills struct {
	t    *testing.T
	m    *keptModel
	dir  string
	acks int
}

// run runs a child until it is killed, after some time or by the wrapper, and brings the model to what it acknowledged.
func (k *deferredKills) run(after time.Duration, wrapper []string) {
	k.t.Helper()
	compaction := int64(0) // in flight
	journal(k.t, k.dir, deferring+"-relaxed", after, wrapper, func(f []string) {
		switch f[0] {
		case "put":
			k.m.inFlight = &Op{Put: &PutRequest{Key: f[1], Value: []byte(f[2])}}
		case "delete":
			k.m.inFlight = &Op{Delete: &DeleteRequest{Key: f[1]}}
		case "compact":
			compaction, _ = strconv.ParseInt(f[1], 10, 64)
		case "ack":
			k.acknowledge(f[1], compaction)
			compaction = 0
		}
	})
	wantSoundFile(k.t, k.dir)
}

// acknowledge does the call in flight: a compaction, or else a write.
func (k *deferredKills) acknowledge(revision string, compaction int64) {
	k.t.Helper()
	var err error
	if compaction > 0 {
		err = k.m.compact(compaction)
	} else {
		_, err = k.m.write(*k.m.inFlight, Relaxed)
		k.m.inFlight = nil
	}
	if got := strconv.FormatInt(k.m.revision, 10); err != nil || got != revision {
		k.t.Fatalf("a child acknowledged revision %s, the model has %s, %v", revision, got, err)
	}
	k.acks++
}

// look starts an engine after the n-th kill, and compares it with the model. The next child starts after a stop in
// order or after a second unclean one.
func (k *deferredKills) look(n int) {
	k.t.Helper()
	opts := relaxed(time.Hour)
	opts.Durability = []Durability{Full, Relaxed}[n%2]
	e, lock := openLocked(k.t, k.dir, opts)
	defer lock.Close()
	wantSound(k.t, e)
	k.m.wantFound(k.t, fmt.Sprint("after kill ", n), e, Relaxed)
	k.m.continueWith(k.t, e)
	if n%3 == 0 {
		crash(k.t, e)
	} else if err := e.Close(); err != nil {
		k.t.Fatal(err)
	}
}

// TestDeferredKeysAcrossKills repeatedly kills a process that writes deferred keys, at any moment or at a system
// call, and compares what the next start finds with a model of what was acknowledged. KARVE_CRASHES sets the
// number of kills; the default is small.
func TestDeferredKeysAcrossKills(t *testing.T) {
	if testing.Short() {
		t.Skip("it starts 18 processes; TestHistoriesOfDeferredKeys has kills too")
	}
	kinds := []struct {
		name, calls string
		most        int // such calls until the kill
	}{
		{name: "any moment"},
		{"writes", "pwrite64", 150},
		{"syncs and truncations", "fsync,fdatasync,ftruncate", 12},
	}
	kills := 6
	if n, err := strconv.Atoi(os.Getenv("KARVE_CRASHES")); err == nil {
		kills = max(1, n/len(kinds))
	}
	for _, kind := range kinds {
		t.Run(kind.name, func(t *testing.T) {
			strace := ""
			if kind.calls != "" {
				strace = traceable(t)
			}
			k := &deferredKills{t: t, m: newKeptModel(), dir: t.TempDir()}
			k.look(0) // this makes the database
			// On a busy machine, every process may be killed before its first answer.
			for n := 0; n < kills || k.acks == 0 && n < 10*kills; n++ {
				var wrapper []string
				if kind.calls != "" {
					wrapper = killAt(strace, kind.calls, 1+rand.IntN(kind.most))
				}
				k.run(time.Duration(rand.IntN(150))*time.Millisecond, wrapper)
				k.look(n)
			}
			if k.acks == 0 {
				t.Error("no process had an answer: this tests nothing")
			}
			t.Logf("%d acknowledged calls", k.acks)
		})
	}
}
