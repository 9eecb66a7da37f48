package fence

import (
	"context"
	"errors"
	"testing"
)

func TestFence(t *testing.T) {
	over := errors.New("over")
	var now error
	with := With(t.Context(), func() error { return now })
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
	if err := Check(Inherit(t.Context(), t.Context())); err != nil {
		t.Errorf("without a fence: got %v", err)
	}
}
