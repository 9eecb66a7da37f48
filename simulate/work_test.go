package simulate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/workqueue"

	"github.com/karve-k8s/karve/internal/panics"
)

// A mistake in the simulation is told with its stack, and does not end the process.
func TestWorkerSurvivesPanic(t *testing.T) {
	q := workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[string](time.Millisecond, time.Second))
	q.Add("pod")
	tries := 0
	var told error
	work(t.Context(), q, func(context.Context, string) (time.Duration, error) {
		if tries++; tries == 1 {
			panic("a mistake")
		}
		q.ShutDown()
		return 0, nil
	}, func(err error) { told = err })
	if tries != 2 || !errors.Is(told, panics.Err) || !strings.Contains(told.Error(), "work_test.go") {
		t.Errorf("%d tries, told %v, want a second try and the stack", tries, told)
	}
}
