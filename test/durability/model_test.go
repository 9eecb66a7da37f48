package durability

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
)

// A version is an object at one time: a value, which is unique in the history, and the
// resourceVersion of the write. The zero value is an absent object.
type version struct {
	value string
	rv    int64
}

// Resource versions that are not known yet.
const (
	rvUnanswered = 0  // of a write without an answer
	rvReset      = -1 // of an object that a reset has restored
)

func (v version) present() bool { return v.value != "" }

// An action is what one call does to one object.
type action int

const (
	read      action = iota
	create           // if the object is absent
	update           // if it has the version of the guard
	remove           // if it has the version of the guard
	patch            // if it exists
	save             // begin to copy it to a slot: karve snapshot, karve backup create
	saved            // end the copy, which is the object as it was at some time since save
	resetting        // begin a reset, which may delete what it then sets: each has a revision, and a list is of one of them
	reset            // set it to the slot's copy with a new write: karve reset
	restore          // set it to the slot's copy: karve datastore restore
)

var actions = [...]string{"read", "create", "update", "delete", "patch", "save", "saved", "resetting", "reset", "restore"}

// slots are the copies of the cluster that a history makes.
const (
	snapshotSlot = iota
	backupSlot
	slots
)

type input struct {
	key    string // empty: all keys
	action action
	guard  version
	value  string // that create, update and patch set
	slot   int
	upsert bool // update creates an absent object: upstream's strategy has AllowCreateOnUpdate
}

type answer struct {
	unknown bool    // there was no answer
	ok      bool    // the call changed the object, or is a read
	absent  bool    // it was refused, because there is no such object
	found   version // that was read or written
}

// A state is one object with its copies.
type state struct {
	is     version
	copies [slots]versions
	saving [slots]bool
	// half is resetting or reset if only that one of the two has happened, else 0. was is the object that resetting has deleted.
	half action
	was  version
}

// versions are what a copy may contain: a line with value and resourceVersion for each. They are a
// string, so that states are comparable. The model keeps all versions that the object has had
// during the copy. To guess one of them, and find out at a reset that it was another, would take
// the checker back through thousands of calls.
type versions string

func (v versions) and(one version) versions {
	if line := versions(fmt.Sprintf("%s %d\n", one.value, one.rv)); !strings.Contains("\n"+string(v), "\n"+string(line)) {
		return v + line
	}
	return v
}

func (v versions) all() iter.Seq[version] {
	return func(yield func(version) bool) {
		for line := range strings.Lines(string(v)) {
			value, rv, _ := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
			n, _ := strconv.ParseInt(rv, 10, 64)
			if !yield(version{value, n}) {
				return
			}
		}
	}
}

// becomes is the state after the object has changed.
func (s state) becomes(v version) state {
	s.is = v
	for n, saving := range s.saving {
		if saving {
			s.copies[n] = s.copies[n].and(v)
		}
	}
	return s
}

// matches reports whether a guard may match an object, and whether it must.
func (s state) matches(guard version) (may, must bool) {
	switch {
	case s.is.value != guard.value:
		return false, false
	case s.is.rv == rvReset:
		return true, false // the guard may be from before the reset
	case s.is.rv == rvUnanswered:
		return true, true
	}
	return s.is.rv == guard.rv, s.is.rv == guard.rv
}

// historyModel says which answers each object may give: whole-object compare-and-swap
// with resourceVersions, in one order of all calls that respects the time. A call
// without an answer was carried out at some time after it, or never.
var historyModel = porcupine.NondeterministicModel{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, op := range history {
			if key := op.Input.(input).key; key != "" {
				byKey[key] = nil
			}
		}
		for _, op := range history {
			if key := op.Input.(input).key; key != "" {
				byKey[key] = append(byKey[key], op)
				continue
			}
			for key := range byKey {
				byKey[key] = append(byKey[key], op)
			}
		}
		return slices.Collect(maps.Values(byKey))
	},
	Init: func() []any { return []any{state{}} },
	Step: func(from, in, out any) []any { return step(from.(state), in.(input), out.(answer)) },
	DescribeOperation: func(in, out any) string {
		i := in.(input)
		return fmt.Sprintf("%s %s guard=%v value=%q -> %+v", actions[i.action], i.key, i.guard, i.value, out)
	},
	DescribeState: func(s any) string { return fmt.Sprintf("%+v", s) },
}

func step(s state, in input, out answer) []any {
	may, must := false, false // the call changes the object
	after := version{in.value, out.found.rv}
	if s.was.present() && in.action != read && in.action != reset {
		return nil // no other write comes in between
	}
	switch in.action {
	case read:
		switch {
		case out.found == s.is:
			return []any{s}
		case out.found.value == s.is.value && s.is.present() && s.is.rv <= 0:
			return []any{s.becomes(out.found)} // the read has told its resourceVersion
		}
		return nil
	case save:
		s.copies[in.slot], s.saving[in.slot] = versions("").and(s.is), true
		return []any{s}
	case saved:
		s.saving[in.slot] = false
		return []any{s}
	case resetting:
		if s.half == reset {
			s.half = 0
			return []any{s}
		}
		s.half = resetting
		gone := s
		gone.is, gone.was = version{}, s.is
		if !s.is.present() {
			return []any{s}
		}
		return []any{s, gone}
	case reset, restore:
		var all []any
		deleted := s.was.present()
		if deleted {
			s.is, s.was = s.was, version{}
		}
		if in.action == reset && s.half == resetting {
			s.half = 0
		} else if in.action == reset {
			s.half = reset
		}
		for v := range s.copies[in.slot].all() {
			if deleted && v.value == s.is.value {
				continue // it was not touched
			}
			after := s
			after.copies[in.slot] = versions("").and(v)
			if in.action == restore || v.value != s.is.value {
				after.is = v
				if in.action == reset && v.present() {
					after.is.rv = rvReset
				}
			}
			all = append(all, after)
		}
		return all
	case create:
		may, must = !s.is.present(), !s.is.present()
	case patch:
		may, must = s.is.present(), s.is.present()
	case update:
		if may, must = s.matches(in.guard); in.upsert && !s.is.present() {
			may, must = true, true // whatever the guard is
		}
	case remove:
		may, must = s.matches(in.guard)
		after = version{}
	}
	switch {
	case out.unknown && may:
		return []any{s, s.becomes(after)}
	case out.unknown:
		return []any{s}
	case out.ok && may:
		return []any{s.becomes(after)}
	case out.ok || must:
		return nil
	case in.action != create && out.absent == s.is.present():
		return nil // 404 of an object that is there, or 409 of one that is not
	}
	return []any{s}
}

func checkHistory(history []porcupine.Operation) porcupine.CheckResult {
	return checkWithin(history, checkLimit)
}

// checkWithin returns Unknown if the check is not done after limit.
func checkWithin(history []porcupine.Operation, limit time.Duration) porcupine.CheckResult {
	return porcupine.CheckOperationsTimeout(historyModel.ToModel(), history, max(limit, time.Second))
}

// explain describes the calls up to the first impossible answer: some calls on the same object
// before it, and those that were in progress.
func explain(history []porcupine.Operation) string {
	for _, part := range historyModel.Partition(history) {
		if checkHistory(part) == porcupine.Ok {
			continue
		}
		slices.SortFunc(part, func(a, b porcupine.Operation) int { return cmp.Compare(a.Return, b.Return) })
		n, _ := slices.BinarySearchFunc(part, true, func(op porcupine.Operation, _ bool) int {
			if checkHistory(until(part, op.Return)) == porcupine.Ok {
				return -1
			}
			return 0
		})
		var text strings.Builder
		for i, op := range until(part, part[min(n, len(part)-1)].Return) {
			if i >= n-20 {
				fmt.Fprintf(&text, "%12d to %12d, client %d: %s\n", op.Call, op.Return, op.ClientId, historyModel.DescribeOperation(op.Input, op.Output))
			}
		}
		return text.String()
	}
	return ""
}

// until is a history as it was at a time: the calls in progress have no answer.
func until(part []porcupine.Operation, now int64) []porcupine.Operation {
	var known []porcupine.Operation
	for _, op := range part {
		in := op.Input.(input)
		switch {
		case op.Return <= now:
		case op.Call > now || in.action == read:
			continue
		case in.action < save:
			op.Output, op.Return = answer{unknown: true}, now+1
		}
		known = append(known, op)
	}
	return known
}

// The checker accepts what a datastore may do, and notices what it must not do.
func TestHistoryModel(t *testing.T) {
	v := func(value string, rv int64) version { return version{value, rv} }
	done := func(found version) answer { return answer{ok: true, found: found} }
	made := []any{input{key: "a", action: create, value: "1"}, done(v("1", 5))}
	guarded := func(a action, guard version, value string) input {
		return input{key: "a", action: a, guard: guard, value: value}
	}
	get := input{key: "a"}
	for name, c := range map[string]struct {
		calls []any // pairs, one after the other
		want  porcupine.CheckResult
	}{
		"what was made is read":                 {append(made, get, done(v("1", 5))), porcupine.Ok},
		"a lost write":                          {append(made, get, done(version{})), porcupine.Illegal},
		"a stale read":                          {append(made, guarded(update, v("1", 5), "2"), done(v("2", 6)), get, done(v("1", 5))), porcupine.Illegal},
		"a refused update with the right guard": {append(made, guarded(update, v("1", 5), "2"), answer{}), porcupine.Illegal},
		"a deleted object that is back":         {append(made, guarded(remove, v("1", 5), ""), done(version{}), get, done(v("1", 5))), porcupine.Illegal},
		"no answer, and carried out":            {append(made, guarded(update, v("1", 5), "2"), answer{unknown: true}, get, done(v("2", 9))), porcupine.Ok},
		"no answer, and not carried out":        {append(made, guarded(update, v("1", 5), "2"), answer{unknown: true}, get, done(v("1", 5))), porcupine.Ok},
		"no answer, and undone":                 {append(made, guarded(update, v("1", 5), "2"), answer{unknown: true}, get, done(v("2", 9)), get, done(v("1", 5))), porcupine.Illegal},
		"a reset":                               {append(made, input{action: save}, answer{}, input{action: saved}, answer{}, guarded(update, v("1", 5), "2"), done(v("2", 6)), input{action: resetting}, answer{}, input{action: reset}, answer{}, get, done(v("1", 8))), porcupine.Ok},
		"a reset that did nothing":              {append(made, input{action: save}, answer{}, input{action: saved}, answer{}, guarded(update, v("1", 5), "2"), done(v("2", 6)), input{action: resetting}, answer{}, input{action: reset}, answer{}, get, done(v("2", 6))), porcupine.Illegal},
		"a reset to what was during the copy":   {append(made, input{action: save}, answer{}, guarded(update, v("1", 5), "2"), done(v("2", 6)), input{action: saved}, answer{}, guarded(update, v("2", 6), "3"), done(v("3", 7)), input{action: resetting}, answer{}, input{action: reset}, answer{}, get, done(v("2", 8))), porcupine.Ok},
		"a restore":                             {append(made, input{action: save}, answer{}, input{action: saved}, answer{}, guarded(remove, v("1", 5), ""), done(version{}), input{action: restore}, answer{}, get, done(v("1", 5))), porcupine.Ok},
	} {
		var history []porcupine.Operation
		for i := 0; i < len(c.calls); i += 2 {
			history = append(history, porcupine.Operation{Input: c.calls[i], Output: c.calls[i+1], Call: int64(i * 10), Return: int64(i*10 + 5)})
		}
		if got := checkHistory(history); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
