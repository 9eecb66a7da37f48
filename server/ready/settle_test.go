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
	nothing := func(context.Context) {}
	for name, tc := range map[string]struct {
		after, stop time.Duration
		between     func(context.Context)
		want        []string
	}{
		"immediately":    {0, time.Hour, nothing, []string{"first", "second"}},
		"later":          {time.Minute, time.Hour, nothing, []string{"first", "second"}},
		"stopped before": {time.Minute, time.Second, nothing, nil},
		"stopped within": {0, time.Second, func(ctx context.Context) { <-ctx.Done() }, []string{"first"}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), tc.stop)
				defer cancel()
				var did []string
				note := func(what string) func(context.Context) { return func(context.Context) { did = append(did, what) } }
				s := &Settling{After: tc.after, Do: []func(context.Context){note("first"), tc.between, note("second")}}
				began := time.Now()
				s.Begin(ctx)
				s.Wait()
				if !slices.Equal(did, tc.want) {
					t.Errorf("got %v, want %v", did, tc.want)
				}
				want := min(tc.after, tc.stop)
				if name == "stopped within" {
					want = tc.stop
				}
				if took := time.Since(began); took != want {
					t.Errorf("it took %v, want %v", took, want)
				}
			})
		})
	}
}
