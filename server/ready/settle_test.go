package ready

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// The work begins after the delay and is done in order. It is abandoned if the server stops
// first.
func TestSettling(t *testing.T) {
	for name, tc := range map[string]struct {
		after, stop time.Duration
		want        []string
	}{
		"immediately":    {0, time.Hour, []string{"first", "second"}},
		"later":          {time.Minute, time.Hour, []string{"first", "second"}},
		"stopped before": {time.Minute, time.Second, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tc.stop)
				defer cancel()
				var did []string
				note := func(what string) func() { return func() { did = append(did, what) } }
				s := &Settling{After: tc.after, Do: []func(){note("first"), note("second")}}
				began := time.Now()
				s.Begin(ctx)
				s.Wait()
				if !slices.Equal(did, tc.want) {
					t.Errorf("got %v, want %v", did, tc.want)
				}
				if took := time.Since(began); took != min(tc.after, tc.stop) {
					t.Errorf("it took %v, want %v", took, min(tc.after, tc.stop))
				}
			})
		})
	}
}
