package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// script is what a fake part does, and when: it fails before it is ready, ends
// by itself after it is, takes its time, fails while it stops, or fails and serves on.
type script struct {
	failStart error
	hang      bool          // never ready
	endAfter  time.Duration // 0: not by itself
	end       error         // what it ends with
	startIn   time.Duration
	stopIn    time.Duration
	failStop  error
	failed    error // after a second, while it goes on
}

// stage runs fake parts and notes what happens, in order.
type stage struct {
	mu     sync.Mutex
	events []string
	gone   atomic.Int32 // calls of gone
}

// told returns what has happened so far.
func (s *stage) told() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.events)
}

func (s *stage) note(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.events = append(s.events, fmt.Sprintf(format, args...))
}

// parts are called a, b, c and need all before them.
func (s *stage) parts(scripts ...script) []Part {
	var parts []Part
	for i, sc := range scripts {
		name := string(rune('a' + i))
		parts = append(parts, Part{name, names(parts), func(ctx context.Context, ready func()) error {
			s.note("%s starts", name)
			defer s.note("%s is gone", name)
			if sc.failStart != nil {
				return sc.failStart
			}
			if sc.hang {
				<-ctx.Done()
				return ctx.Err()
			}
			time.Sleep(sc.startIn)
			s.note("%s is ready", name)
			ready()
			var end <-chan time.Time
			if sc.endAfter != 0 {
				end = time.After(sc.endAfter)
			}
			if sc.failed != nil {
				time.Sleep(time.Second) // all are up
				Failed(ctx, sc.failed)
				Failed(ctx, errors.New("a second failure"))
			}
			select {
			case <-ctx.Done():
			case <-end:
				return sc.end
			}
			s.note("%s stops", name)
			time.Sleep(sc.stopIn)
			return sc.failStop
		}})
	}
	return parts
}

// run runs the parts and ends ctx after life.
func (s *stage) run(life time.Duration, up func() error, parts []Part) error {
	ctx, cancel := context.WithTimeout(context.Background(), life)
	defer cancel()
	if up == nil {
		up = func() error { s.note("up"); return nil }
	}
	return Run(ctx, parts, func(verb, name string) { s.note("%s %s", verb, name) }, up, func() { s.gone.Add(1) })
}

func (s *stage) want(t *testing.T, want string) {
	t.Helper()
	if got := strings.Join(s.events, ", "); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// synctest.Test fails when a goroutine of the bubble is left behind, so every
// test here is one of leaks too.

// A part that has failed may go on serving, and goes when those above it have gone.
func TestFailedPartStopsInItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		broken := errors.New("the disk has failed")
		err := s.run(time.Minute, nil, s.parts(script{failed: broken, stopIn: time.Second}, script{stopIn: time.Second}))
		if !errors.Is(err, broken) || err.Error() != "a: the disk has failed" {
			t.Errorf("got %v, want a: %v", err, broken)
		}
		got := strings.Join(s.events, ", ")
		if want := "stopping b, b stops, b is gone, stopping a, a stops, a is gone"; !strings.HasSuffix(got, want) {
			t.Errorf("got %s, want %s at its end", got, want)
		}
	})
}

func TestPartsStartInOrderAndStopInReverse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		slow := script{startIn: time.Second, stopIn: time.Second}
		began := time.Now()
		if err := s.run(time.Minute, nil, s.parts(slow, slow, slow)); err != nil {
			t.Errorf("got %v, want nil", err)
		}
		s.want(t, "starting a, a starts, a is ready, starting b, b starts, b is ready, starting c, c starts, c is ready, up, "+
			"stopping c, c stops, c is gone, stopping b, b stops, b is gone, stopping a, a stops, a is gone")
		if got, want := time.Since(began), time.Minute+3*time.Second; got != want {
			t.Errorf("took %v, want %v: the stop waits for each part", got, want)
		}
	})
}

// A diamond: b and c need a, d needs both; e, which d needs too, is switched off.
func (s *stage) diamond(scripts ...script) []Part {
	parts := s.parts(scripts...)
	for i, needs := range [][]string{nil, {"a"}, {"a"}, {"b", "e", "c"}} {
		parts[i].Needs = needs
	}
	return parts
}

func TestPartsStartAtTheSameTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		began := time.Now()
		var took time.Duration
		up := func() error { took = time.Since(began); return nil }
		parts := s.diamond(script{startIn: time.Second}, script{startIn: 5 * time.Second, stopIn: time.Second}, script{startIn: 3 * time.Second, stopIn: time.Second}, script{startIn: time.Second})
		if err := s.run(time.Minute, up, parts); err != nil {
			t.Errorf("got %v, want nil", err)
		}
		if want := 7 * time.Second; took != want {
			t.Errorf("the start took %v, want %v: as long as the slower of b and c, and a and d", took, want)
		}
		if got, want := time.Since(began), time.Minute+2*time.Second; got != want {
			t.Errorf("took %v, want %v: b and c stop one after another", got, want)
		}
		s.wantOrder(t, "a is ready", "starting b", "starting c", "c is ready", "b is ready", "starting d", "d is ready",
			"stopping d", "d is gone", "stopping c", "c is gone", "stopping b", "b is gone", "stopping a", "a is gone")
	})
}

func TestFailedStartStopsWhatStartsToo(t *testing.T) {
	for name, want := range map[string]string{"b": "c is gone", "c": "b is gone"} {
		synctest.Test(t, func(t *testing.T) {
			s := &stage{}
			broken := errors.New("broken")
			scripts := map[string]*script{"a": {}, "b": {hang: true}, "c": {hang: true}, "d": {}}
			*scripts[name] = script{failStart: broken}
			err := s.run(time.Minute, nil, s.diamond(*scripts["a"], *scripts["b"], *scripts["c"], *scripts["d"]))
			if !errors.Is(err, broken) || err.Error() != name+": broken" {
				t.Errorf("got %v, want %s: broken", err, name)
			}
			s.wantOrder(t, want, "stopping a", "a is gone")
			if slices.Contains(s.events, "starting d") {
				t.Errorf("d was started: %v", s.events)
			}
		})
	}
}

// wantOrder fails the test unless all of want happened, in this order.
func (s *stage) wantOrder(t *testing.T, want ...string) {
	t.Helper()
	events := s.told()
	left := want
	for _, e := range events {
		if len(left) > 0 && e == left[0] {
			left = left[1:]
		}
	}
	if len(left) > 0 {
		t.Errorf("%q did not happen, or not in this order: got %v", left[0], events)
	}
}

func TestFailedStartStopsWhatHadStarted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, broken := &stage{}, errors.New("broken")
		err := s.run(time.Minute, nil, s.parts(script{}, script{failStart: broken}, script{}))
		if !errors.Is(err, broken) || err.Error() != "b: broken" {
			t.Errorf("got %v, want b: broken, once", err)
		}
		s.want(t, "starting a, a starts, a is ready, starting b, b starts, b is gone, stopping b, stopping a, a stops, a is gone")
	})
}

func TestPartThatEndsStopsTheOthers(t *testing.T) {
	broken := errors.New("broken")
	for with, want := range map[error]error{broken: broken, nil: ErrStopped} {
		synctest.Test(t, func(t *testing.T) {
			s, began := &stage{}, time.Now()
			err := s.run(time.Hour, nil, s.parts(script{}, script{endAfter: time.Second, end: with}, script{}))
			if took := time.Since(began); !errors.Is(err, want) || !strings.HasPrefix(err.Error(), "b: ") || took != time.Second {
				t.Errorf("got %v after %v, want b: %v at once, after 1s", err, took, want)
			}
			s.wantOrder(t, "b is gone", "c is gone", "a is gone")
		})
	}
}

func TestContextEndsDuringStart(t *testing.T) {
	for position := range 3 {
		synctest.Test(t, func(t *testing.T) {
			s := &stage{}
			scripts := make([]script, 3)
			scripts[position].hang = true
			if err := s.run(time.Second, nil, s.parts(scripts...)); err != nil {
				t.Errorf("hanging at %d: got %v, want nil: being told to stop is no failure", position, err)
			}
			if slices.Contains(s.events, "up") {
				t.Errorf("hanging at %d: up was called: %v", position, s.events)
			}
			if last := s.events[len(s.events)-1]; last != "a is gone" {
				t.Errorf("hanging at %d: last was %q, want a to be gone", position, last)
			}
			if started := strings.Count(strings.Join(s.events, ","), "starting"); started != position+1 {
				t.Errorf("hanging at %d: %d parts were started, want %d", position, started, position+1)
			}
		})
	}
}

func TestFailingUpStopsAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		broken := errors.New("no kubeconfig")
		err := s.run(time.Hour, func() error { return broken }, s.parts(script{}, script{}))
		if !errors.Is(err, broken) {
			t.Errorf("got %v, want %v", err, broken)
		}
		s.want(t, "starting a, a starts, a is ready, starting b, b starts, b is ready, stopping b, b stops, b is gone, stopping a, a stops, a is gone")
	})
}

func TestEveryFailedStopIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		one, two := errors.New("one"), errors.New("two")
		err := s.run(time.Second, nil, s.parts(script{failStop: one}, script{failStop: context.Canceled}, script{failStop: two}))
		if !errors.Is(err, one) || !errors.Is(err, two) || errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want one and two, and no cancelled context, which is a clean stop", err)
		}
		for _, want := range []string{"a: one", "c: two"} {
			if err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("got %v, want %q in it", err, want)
			}
		}
	})
}

func TestTimeoutNamesThePartAndItsLastError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		parts := s.parts(script{}, script{hang: true}, script{})
		for i, p := range parts {
			parts[i] = Within(time.Minute, p, func() error { return errors.New(p.Name + " waits for Godot") })
		}
		began := time.Now()
		err := s.run(time.Hour, nil, parts)
		if err == nil || !strings.Contains(err.Error(), "b: not ready after 1m0s") || !strings.Contains(err.Error(), "b waits for Godot") {
			t.Errorf("got %v, want the name b, the time and what b waits for", err)
		}
		if took := time.Since(began); took != time.Minute {
			t.Errorf("took %v, want 1m0s", took)
		}
		if last := s.events[len(s.events)-1]; last != "a is gone" {
			t.Errorf("last was %q, want a to be gone", last)
		}
	})
}

// The limit is one of the start: a part that is ready may run for ever.
func TestTimeoutEndsWithReadiness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		parts := s.parts(script{startIn: 59 * time.Second})
		parts[0] = Within(time.Minute, parts[0], func() error { return errors.New("late") })
		if err := s.run(time.Hour, nil, parts); err != nil {
			t.Errorf("got %v, want nil", err)
		}
	})
}

// Storage must outlive an API server that drains: the end of ctx reaches a part
// only when it is its turn. Values are passed on.
func TestPartsOutliveTheContext(t *testing.T) {
	type key struct{}
	synctest.Test(t, func(t *testing.T) {
		s := &stage{}
		parts := s.parts(script{}, script{stopIn: time.Second})
		var value any
		early := make(chan error, 1)
		run := parts[0].Run
		parts[0].Run = func(ctx context.Context, ready func()) error {
			value = ctx.Value(key{})
			go func() {
				time.Sleep(10*time.Second + 500*time.Millisecond) // b stops now
				early <- ctx.Err()
			}()
			return run(ctx, ready)
		}
		ctx, cancel := context.WithTimeout(context.WithValue(context.Background(), key{}, "kept"), 10*time.Second)
		defer cancel()
		if err := Run(ctx, parts, func(string, string) {}, func() error { return nil }, func() {}); err != nil {
			t.Error(err)
		}
		if err := <-early; err != nil {
			t.Errorf("a's context while b stops: got %v, want it open", err)
		}
		if value != "kept" {
			t.Errorf("value of the context: got %v, want it kept", value)
		}
	})
}

// A part that takes too long to stop delays no caller, and keeps what it uses until it is gone.
func TestOverduePartKeepsWhatItUses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, late := &stage{}, errors.New("still terminating")
		parts := s.parts(script{}, script{stopIn: time.Hour}, script{})
		run := parts[1].Run
		parts[1].Run = func(ctx context.Context, ready func()) error {
			defer context.AfterFunc(ctx, func() {
				time.Sleep(time.Minute)
				Overdue(ctx, late)
				Overdue(ctx, errors.New("a second time"))
			})()
			return run(ctx, ready)
		}
		began := time.Now()
		err := s.run(time.Minute, nil, parts)
		if !errors.Is(err, late) || err.Error() != "stop b: still terminating" || time.Since(began) != 2*time.Minute {
			t.Errorf("got %v after %v, want that b is late after 2m0s", err, time.Since(began))
		}
		time.Sleep(59*time.Minute - time.Second)
		if slices.Contains(s.told(), "a stops") || s.gone.Load() != 0 {
			t.Errorf("a was stopped under b, or all was said to be gone: %v", s.told())
		}
		time.Sleep(2 * time.Second)
		s.wantOrder(t, "c is gone", "b is gone", "a stops", "a is gone")
		if s.gone.Load() != 1 {
			t.Errorf("gone was called %d times, want once", s.gone.Load())
		}
	})
}

// All is gone before Run returns, if no part is late.
func TestGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, parts := range [][]script{{}, {{}, {}}, {{failStart: errors.New("broken")}}, {{}, {endAfter: time.Second}}} {
			s := &stage{}
			_ = s.run(time.Minute, nil, s.parts(parts...))
			if s.gone.Load() != 1 {
				t.Errorf("gone was called %d times, want once", s.gone.Load())
			}
		}
	})
}
