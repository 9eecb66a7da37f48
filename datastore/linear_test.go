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

// record runs clients that call an engine on a few keys, and returns their history. A client ends after its calls, or
// at the first error, after which the outcome of its call is unknown. Values begin with begin.
func record(t *testing.T, e *Engine, clock *atomic.Int64, begin string, clients, calls, keys int) (all []porcupine.Operation, unknown int) {
	t.Helper()
	histories, failed := make([][]porcupine.Operation, clients), make([]error, clients)
	var group sync.WaitGroup
	for c := range clients {
		group.Go(func() {
			known := map[string]string{}
			for i := 0; i < calls && failed[c] == nil; i++ {
				in := nextRegisterInput(fmt.Sprintf("/%d", rand.IntN(keys)), known, fmt.Sprintf("%s-%d-%d", begin, c, i))
				op := porcupine.Operation{ClientId: c, Input: in, Call: clock.Add(1)}
				out, err := registerCall(t.Context(), e, in)
				op.Output, op.Return = out, clock.Add(1)
				if failed[c] = err; err != nil {
					op.Output, op.Return = registerOutput{unknown: true}, int64(time.Hour)
				}
				histories[c] = append(histories[c], op)
				known[in.key] = out.value
			}
		})
	}
	group.Wait()
	for c, err := range failed {
		all = append(all, histories[c]...)
		if err != nil {
			unknown++
			if !errors.Is(err, ErrUnknownOutcome) {
				t.Errorf("%v, want %v", err, ErrUnknownOutcome)
			}
		}
	}
	return all, unknown
}

func wantLinearizable(t *testing.T, history []porcupine.Operation) {
	t.Helper()
	if got := porcupine.CheckOperationsTimeout(registerModel.ToModel(), history, 30*time.Second); got != porcupine.Ok {
		t.Errorf("history of %d calls: %v", len(history), got)
	}
}

func TestLinearizable(t *testing.T) {
	for _, mode := range []Durability{Full, Memory} {
		t.Run(mode.String(), func(t *testing.T) {
			e := openTest(t, t.TempDir(), Options{Durability: mode, CacheBytes: 50})
			history, unknown := record(t, e, new(atomic.Int64), "v", 8, 150, 3)
			if unknown != 0 {
				t.Errorf("%d calls failed", unknown)
			}
			wantLinearizable(t, history)
		})
	}
}

// The history stays linearizable across failures of the disk before, in and after a COMMIT, each
// followed by a start. A call with an unknown outcome has happened completely or not at all.
func TestLinearizableAcrossFailures(t *testing.T) {
	dir := t.TempDir()
	var clock atomic.Int64
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
		calls, open := record(t, e, &clock, fmt.Sprint(round), 5, 100, 2)
		history, unknown = append(history, calls...), unknown+open
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
	wantLinearizable(t, history)
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
