package simulate

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"
	logtest "github.com/sirupsen/logrus/hooks/test"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// A defect that an object shows must not end the process, nor the work on other objects.
func TestAPanicIsOneObjects(t *testing.T) {
	log, lines := logtest.NewNullLogger()
	s, _ := newSimulation(t)
	s.Log = log
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	bad, good := types.NamespacedName{Namespace: "test", Name: "bad"}, types.NamespacedName{Namespace: "test", Name: "good"}
	s.pods.Add(bad)
	s.pods.Add(good)
	work(ctx, s.pods, func(_ context.Context, key types.NamespacedName) (time.Duration, error) {
		if key == bad {
			var none *corev1.Pod
			return 0, errors.New(none.Name)
		}
		s.pods.ShutDown()
		return 0, nil
	}, s.complain)
	if e := lines.LastEntry(); e == nil || e.Level != logrus.WarnLevel || !strings.Contains(e.Message, "test/bad: panic: ") || !strings.Contains(e.Message, "panic_test.go") {
		t.Errorf("logged %+v, want a warning with the object's name and the place", e)
	}
}

func TestARestartIsNeverImmediateForLong(t *testing.T) {
	for _, value := range []string{"0s", "1ns"} {
		s, err := readScript(newPod(corev1.RestartPolicyAlways, RunFor, "0s", BackOff, value), Defaults{})
		if got := s.containers["main"].backOff; err != nil || got != leastBackOff {
			t.Errorf("back-off %s: got %v, %v; want %v", value, got, err, leastBackOff)
		}
	}
}
