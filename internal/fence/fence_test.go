package fence

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"
)

func TestFence(t *testing.T) {
	over := errors.New("over")
	var now error
	with := With(t.Context(), func() (time.Duration, error) { return time.Second, now })
	derived, cancel := context.WithCancel(with)
	defer cancel()
	inherited := Inherit(t.Context(), derived)
	for _, want := range []error{nil, over} {
		now = want
		for name, ctx := range map[string]context.Context{"with": with, "derived": derived, "inherited": inherited} {
			if got := Check(ctx); got != want {
				t.Errorf("%s: got %v, want %v", name, got, want)
			}
		}
	}
	if left, err := Left(Inherit(t.Context(), derived)); left != time.Second || err != over {
		t.Errorf("got %v, %v, want what the fence says", left, err)
	}
	if left, err := Left(Inherit(t.Context(), t.Context())); err != nil || left != math.MaxInt64 {
		t.Errorf("without a fence: got %v, %v", left, err)
	}
}
