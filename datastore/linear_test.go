package datastore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// These are the calls in a history of concurrent clients on a few keys: guarded puts, deletes and
// reads. The state of a key is its mod revision; 0 means that it is absent.
type linearInput struct {
	key    string
	kind   int   // 0 read, 1 put if the revision is guard, 2 delete if it is
	guard  int64 // expected mod revision
	client int
}

type linearOutput struct {
	ok       bool
	revision int64 // of the key found, or made
}

// linearModel is a register with compare-and-swap. Its values are revisions, which only grow.
var linearModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(linearInput).key
			byKey[key] = append(byKey[key], op)
		}
		var parts [][]porcupine.Operation
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return [2]int64{} }, // mod revision, highest revision ever
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.([2]int64), input.(linearInput), output.(linearOutput)
		switch {
		case in.kind == 0:
			return out.revision == s[0], s
		case !out.ok:
			return s[0] != in.guard && out.revision == s[0], s
		case s[0] != in.guard || out.revision <= s[1]:
			return false, s
		case in.kind == 1:
			return true, [2]int64{out.revision, out.revision}
		default:
			return true, [2]int64{0, out.revision}
		}
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// record runs clients for a while and returns their history.
func record(t *testing.T, e *Engine, clients, calls int) []porcupine.Operation {
	var clock atomic.Int64 // that of Windows may show one time for many calls
	histories := make([][]porcupine.Operation, clients)
	var group sync.WaitGroup
	for c := range clients {
		group.Go(func() {
			random := rand.New(rand.NewPCG(rand.Uint64(), 1))
			known := map[string]int64{}
			for range calls {
				in := linearInput{key: fmt.Sprintf("/%d", random.IntN(3)), kind: random.IntN(3), client: c}
				in.guard = known[in.key]
				call := clock.Add(1)
				out, err := linearCall(t, e, in)
				if err != nil {
					t.Error(err)
					return
				}
				known[in.key] = out.revision
				if out.ok && in.kind == 2 {
					known[in.key] = 0
				}
				histories[c] = append(histories[c], porcupine.Operation{ClientId: c, Input: in, Output: out, Call: call, Return: clock.Add(1)})
			}
		})
	}
	group.Wait()
	var all []porcupine.Operation
	for _, h := range histories {
		all = append(all, h...)
	}
	return all
}

func linearCall(t *testing.T, e *Engine, in linearInput) (out linearOutput, err error) {
	if in.kind == 0 {
		resp, err := e.Range(t.Context(), RangeRequest{Key: in.key})
		if err == nil && len(resp.KVs) > 0 {
			out.revision = resp.KVs[0].ModRevision
		}
		return out, err
	}
	op := Op{Put: &PutRequest{Key: in.key, Value: []byte(fmt.Sprint(in.client))}}
	if in.kind == 2 {
		op = Op{Delete: &DeleteRequest{Key: in.key}}
	}
	resp, err := e.Txn(t.Context(), TxnRequest{
		Compare: []Compare{{Key: in.key, Target: CompareModRevision, Number: in.guard}},
		Then:    []Op{op},
		Else:    []Op{{Range: &RangeRequest{Key: in.key}}},
	})
	switch {
	case err != nil:
		return out, err
	case resp.Succeeded && in.kind == 2 && in.guard == 0:
		return linearOutput{ok: false}, nil // nothing to delete: no revision, a read of an absent key
	case resp.Succeeded:
		return linearOutput{ok: true, revision: resp.Revision}, nil
	}
	if kvs := resp.Responses[0].Range.KVs; len(kvs) > 0 {
		out.revision = kvs[0].ModRevision
	}
	return out, nil
}

func TestLinearizable(t *testing.T) {
	for _, mode := range []Durability{Full, Memory} {
		t.Run(mode.String(), func(t *testing.T) {
			e := openTest(t, t.TempDir(), Options{Durability: mode, CacheBytes: 50})
			history := record(t, e, 8, 150)
			for i, op := range history { // a delete of nothing is a read that found nothing
				if in := op.Input.(linearInput); in.kind == 2 && in.guard == 0 && !op.Output.(linearOutput).ok && op.Output.(linearOutput).revision == 0 {
					in.kind = 0
					history[i].Input = in
				}
			}
			result, info := porcupine.CheckOperationsVerbose(linearModel, history, 30*time.Second)
			if result != porcupine.Ok {
				_ = info
				t.Errorf("history of %d calls: %v", len(history), result)
			}
		})
	}
}

// The checker can fail: it rejects a history with a stale read.
func TestLinearizableNoticesStaleReads(t *testing.T) {
	history := []porcupine.Operation{
		{ClientId: 0, Input: linearInput{key: "/0", kind: 1}, Output: linearOutput{ok: true, revision: 2}, Call: 0, Return: 1},
		{ClientId: 1, Input: linearInput{key: "/0"}, Output: linearOutput{}, Call: 2, Return: 3},
	}
	if porcupine.CheckOperations(linearModel, history) {
		t.Error("a stale read was accepted")
	}
}

// These are calls on a register with unique values. The outcome of some is unknown: they may have
// happened at any time after the call, or never.
type registerInput struct {
	kind         int // 0 read, 1 put value if guard is there, 2 delete it
	guard, value string
	key          string
}

// nextRegisterInput returns a random call on a key by a client that last saw the values in known.
// fresh is a value that no client has put yet.
func nextRegisterInput(key string, known map[string]string, fresh string) registerInput {
	in := registerInput{key: key, kind: rand.IntN(3)}
	in.guard = known[in.key]
	if in.kind == 1 {
		in.value = fresh
	}
	if in.kind == 2 && in.guard == "" {
		in.kind = 0
	}
	return in
}

type registerOutput struct {
	ok, unknown bool
	value       string // found, or put
	revision    int64  // of it, or of the deletion; the model ignores it
}

var registerModel = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			key := op.Input.(registerInput).key
			byKey[key] = append(byKey[key], op)
		}
		return slices.Collect(maps.Values(byKey))
	},
	Init: func() []any { return []any{""} },
	Step: func(state, input, output any) []any {
		s, in, out := state.(string), input.(registerInput), output.(registerOutput)
		done := in.value // the empty string for a deletion
		switch {
		case in.kind == 0 || !out.ok && !out.unknown:
			if out.value == s && (in.kind == 0 || s != in.guard) {
				return []any{s}
			}
			return nil
		case out.unknown && s == in.guard:
			return []any{s, done}
		case out.unknown:
			return []any{s}
		case s == in.guard:
			return []any{done}
		}
		return nil
	},
}

// The history stays linearizable across failures of the disk before, in and after a COMMIT, each
// followed by a start. A call with an unknown outcome has happened completely or not at all.
func TestLinearizableAcrossFailures(t *testing.T) {
	dir := t.TempDir()
	var clock atomic.Int64
	var mu sync.Mutex
	var history []porcupine.Operation
	unknown := 0
	for round := range 8 {
		e, lock := openLocked(t, dir, Options{})
		var left atomic.Int64
		left.Store(int64(5 + rand.IntN(20)))
		step := []string{"begin", "commit", "committed"}[round%3]
		e.file.OnStep(func(at string) error {
			if at == step && left.Add(-1) < 0 {
				return errors.New("the disk is gone")
			}
			return nil
		})
		var group sync.WaitGroup
		for c := range 5 {
			group.Go(func() {
				known := map[string]string{}
				for i := range 100 {
					in := nextRegisterInput(fmt.Sprintf("/%d", rand.IntN(2)), known, fmt.Sprintf("%d-%d-%d", round, c, i))
					call := clock.Add(1)
					out, err := registerCall(t.Context(), e, in)
					op := porcupine.Operation{ClientId: c, Input: in, Output: out, Call: call, Return: clock.Add(1)}
					if err != nil {
						if !errors.Is(err, ErrUnknownOutcome) {
							t.Errorf("round %d: %v, want %v", round, err, ErrUnknownOutcome)
						}
						op.Output, op.Return = registerOutput{unknown: true}, int64(time.Hour)
					}
					mu.Lock()
					history = append(history, op)
					if err != nil {
						unknown++
					}
					mu.Unlock()
					if err != nil {
						return
					}
					known[in.key] = out.value
				}
			})
		}
		group.Wait()
		if e.Err() == nil {
			e.fail(errors.New("the round is over"))
		}
		crash(t, e)
		lock.Close()
	}
	e, lock := openLocked(t, dir, Options{})
	for _, key := range []string{"/0", "/1"} {
		in := registerInput{key: key}
		call := clock.Add(1)
		out, err := registerCall(t.Context(), e, in)
		if err != nil {
			t.Fatal(err)
		}
		history = append(history, porcupine.Operation{Input: in, Output: out, Call: call, Return: clock.Add(1)})
	}
	e.Close()
	lock.Close()
	if unknown == 0 {
		t.Error("no call had an unknown outcome")
	}
	if got := porcupine.CheckOperationsTimeout(registerModel.ToModel(), history, 30*time.Second); got != porcupine.Ok {
		t.Errorf("history of %d calls, %d of them unknown: %v", len(history), unknown, got)
	}
}

func registerCall(ctx context.Context, e *Engine, in registerInput) (out registerOutput, err error) {
	found := func(r *RangeResponse) {
		if len(r.KVs) > 0 {
			out.value, out.revision = string(r.KVs[0].Value), r.KVs[0].ModRevision
		}
	}
	if in.kind == 0 {
		resp, err := e.Range(ctx, RangeRequest{Key: in.key})
		if err == nil {
			found(resp)
		}
		return out, err
	}
	op := Op{Put: &PutRequest{Key: in.key, Value: []byte(in.value)}}
	if in.kind == 2 {
		op = Op{Delete: &DeleteRequest{Key: in.key}}
	}
	guard := Compare{Key: in.key, Target: CompareValue, Value: []byte(in.guard)}
	if in.guard == "" {
		guard = Compare{Key: in.key, Target: CompareVersion}
	}
	resp, err := e.Txn(ctx, TxnRequest{Compare: []Compare{guard}, Then: []Op{op}, Else: []Op{{Range: &RangeRequest{Key: in.key}}}})
	if err != nil {
		return out, err
	}
	if out.ok = resp.Succeeded; out.ok {
		out.value, out.revision = in.value, resp.Revision
		return out, nil
	}
	found(resp.Responses[0].Range)
	return out, nil
}
