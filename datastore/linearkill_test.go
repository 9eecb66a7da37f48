package datastore

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// historyKeys are the keys of a history. Half of the calls are for the first two, where the clients
// conflict. Writes to the others are not overwritten soon, so a loss would show.
const historyKeys = 50

func historyKey(n int) string { return fmt.Sprintf("/%02d", n) }

// historyClient calls the engine until the process is killed. It journals each call before it
// (client, kind, key, guard, value) and after its answer (client, ok, value, revision), all with
// %q. The engine compacts meanwhile.
func historyClient(e *Engine, c int) error {
	known := map[string]string{}
	begin := strconv.FormatInt(time.Now().UnixNano(), 36)
	for i := 0; ; i++ {
		key := historyKey(rand.IntN(historyKeys))
		if rand.IntN(2) == 0 {
			key = historyKey(rand.IntN(2))
		}
		in := nextRegisterInput(key, known, fmt.Sprintf("%s-%d-%d", begin, c, i))
		fmt.Printf("call %d %d %q %q %q\n", c, in.kind, in.key, in.guard, in.value)
		out, err := registerCall(context.Background(), e, in)
		if err != nil {
			return err
		}
		fmt.Printf("done %d %t %q %d\n", c, out.ok, out.value, out.revision)
		known[in.key] = out.value
		if now := e.Revision(); c == 0 && i%50 == 49 && now > e.CompactRevision()+5 {
			if err := e.Compact(context.Background(), now-5, false); err != nil {
				return err
			}
		}
	}
}

// A killHistory is the history of concurrent clients on one directory, across kills. The time of a
// call or answer is its position in the journal. A client journals a call before it makes it, and
// an answer after it has it. So if an answer precedes a call in the journal, it also happened
// before it.
type killHistory struct {
	t       *testing.T
	dir     string
	mode    string
	now     int64
	ops     []porcupine.Operation
	open    map[int]porcupine.Operation // by client
	newest  int64                       // the highest revision answered
	written map[int64]string            // by revision, the key and value of the write that has it
	unknown int
}

// run runs a child, kills it some time after its start, and records its journal. A call without an
// answer has happened or never will, because the process is dead.
func (h *killHistory) run(after time.Duration) {
	h.t.Helper()
	h.open = map[int]porcupine.Operation{}
	floor := map[int]int64{} // by client, newest at its call
	journal(h.t, h.dir, "history-"+h.mode, after, nil, func(f []string) {
		h.now++
		c, _ := strconv.Atoi(f[1])
		switch f[0] {
		case "call":
			in := registerInput{key: unquote(f[3]), guard: unquote(f[4]), value: unquote(f[5])}
			in.kind, _ = strconv.Atoi(f[2])
			h.open[c] = porcupine.Operation{ClientId: c, Input: in, Call: h.now}
			floor[c] = h.newest
		case "done":
			out := registerOutput{ok: f[2] == "true", value: unquote(f[3])}
			out.revision, _ = strconv.ParseInt(f[4], 10, 64)
			op := h.open[c]
			delete(h.open, c)
			op.Output, op.Return = out, h.now
			h.ops = append(h.ops, op)
			h.seen(op, floor[c])
		}
	})
	h.now++
	for _, op := range h.open {
		if op.Input.(registerInput).kind == 0 {
			continue // its result is unknown
		}
		op.Output, op.Return = registerOutput{unknown: true}, h.now
		h.ops = append(h.ops, op)
		h.unknown++
	}
}

// seen checks what the model ignores: revisions grow, and each belongs to one write.
func (h *killHistory) seen(op porcupine.Operation, floor int64) {
	h.t.Helper()
	in, out := op.Input.(registerInput), op.Output.(registerOutput)
	if out.revision == 0 {
		return
	}
	what := in.key + "=" + out.value
	if before, ok := h.written[out.revision]; ok && before != what {
		h.t.Errorf("revision %d is of %s and of %s", out.revision, before, what)
	}
	h.written[out.revision] = what
	if out.ok && out.revision <= floor {
		h.t.Errorf("a write has revision %d, and %d was answered before it began", out.revision, floor)
	}
	h.newest = max(h.newest, out.revision)
}

// look reads every key of the directory after the last child.
func (h *killHistory) look() {
	h.t.Helper()
	e, lock := openLocked(h.t, h.dir, Options{})
	defer lock.Close()
	defer e.Close()
	for n := range historyKeys {
		op := porcupine.Operation{Input: registerInput{key: historyKey(n)}, Call: h.now + 1, Return: h.now + 2}
		h.now += 2
		out, err := registerCall(h.t.Context(), e, op.Input.(registerInput))
		if err != nil {
			h.t.Fatal(err)
		}
		op.Output = out
		h.ops = append(h.ops, op)
		h.seen(op, 0)
	}
}

func (h *killHistory) check() porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(registerModel.ToModel(), h.ops, time.Minute)
}

func newKillHistory(t *testing.T, mode string) *killHistory {
	return &killHistory{t: t, dir: t.TempDir(), mode: mode, written: map[int64]string{}}
}

func unquote(s string) string {
	text, err := strconv.Unquote(s)
	if err != nil {
		panic(err) // no child wrote this journal
	}
	return text
}

// TestLinearizableAcrossKills repeatedly kills a process with several clients, starts it again on
// the same directory, and checks the whole history. KARVE_CRASHES sets the number of kills; the
// default is one short history.
func TestLinearizableAcrossKills(t *testing.T) {
	const kills = 10 // of one directory
	histories := 1
	if n, err := strconv.Atoi(os.Getenv("KARVE_CRASHES")); err == nil {
		histories = max(1, n/kills/2)
	}
	for _, mode := range []string{"full", "relaxed"} {
		t.Run(mode, func(t *testing.T) {
			calls, unknown := 0, 0
			for n := range histories {
				h := newKillHistory(t, mode)
				for range kills {
					h.run(time.Duration(rand.IntN(100)) * time.Millisecond)
				}
				h.look()
				if got := h.check(); got != porcupine.Ok {
					t.Fatalf("history %d of %d calls, %d of them unknown: %v", n, len(h.ops), h.unknown, got)
				}
				calls, unknown = calls+len(h.ops), unknown+h.unknown
			}
			if unknown == 0 {
				t.Error("no kill met a call")
			}
			t.Logf("%d kills, %d calls, %d of them without an answer", histories*kills, calls, unknown)
		})
	}
}
