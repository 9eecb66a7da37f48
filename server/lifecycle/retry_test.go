package lifecycle

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// A part that fails is run again while the others go on, until it is ready. What an attempt has left
// behind ends before the next one.
func TestRetriedPartIsRunAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, refused, began := &stage{}, errors.New("refused"), time.Now()
		attempts, blocked := 0, 0
		var left atomic.Int32
		var took time.Duration
		parts := s.parts(script{})
		parts = append(parts, Retried(Part{"b", []string{"a"}, func(ctx context.Context, ready func()) error {
			left.Add(1)
			context.AfterFunc(ctx, func() { left.Add(-1) })
			synctest.Wait()
			if n := left.Load(); n != 1 {
				t.Errorf("%d attempts at once, want one", n)
			}
			if attempts++; attempts < 4 {
				return refused
			}
			ready()
			<-ctx.Done()
			return nil
		}}, func(err error) {
			if blocked++; !errors.Is(err, refused) {
				t.Errorf("blocked by %v, want %v", err, refused)
			}
		}))
		if err := s.run(time.Minute, func() error { took = time.Since(began); return nil }, parts); err != nil {
			t.Errorf("got %v, want nil: the failures are no failure of the whole", err)
		}
		if want := (1 + 2 + 4) * firstRetry; took != want || attempts != 4 || blocked != 3 {
			t.Errorf("ready after %v, %d attempts and %d reports, want %v, 4 and 3", took, attempts, blocked, want)
		}
	})
}

// A part that was ready and fails is run again, too, and ready only once. A stop does not wait for the
// next attempt.
func TestRetriedPartThatFailsLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, began, attempts := &stage{}, time.Now(), 0
		err := s.run(90*time.Minute+lastRetry/2, nil, []Part{Retried(Part{"a", nil, func(ctx context.Context, ready func()) error {
			attempts++
			ready()
			time.Sleep(30 * time.Minute)
			return nil
		}}, func(err error) {
			if !errors.Is(err, ErrStopped) {
				t.Errorf("got %v, want %v", err, ErrStopped)
			}
		})})
		if err != nil || attempts != 4 {
			t.Errorf("got %v and %d attempts, want nil and 4", err, attempts)
		}
		if took := time.Since(began); took > 2*time.Hour+4*firstRetry {
			t.Errorf("the stop came after %v", took)
		}
	})
}

func TestFinalErrorIsNotRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, wrong := &stage{}, errors.New("wrong option")
		err := s.run(time.Hour, nil, []Part{Retried(Part{"a", nil, func(context.Context, func()) error { return Final(wrong) }},
			func(error) { t.Error("it was reported as blocked") })})
		if !errors.Is(err, wrong) || err.Error() != "a: wrong option" {
			t.Errorf("got %v, want a: %v", err, wrong)
		}
		if Final(nil) != nil {
			t.Error("no error became one")
		}
	})
}
