package server_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/apiserver"
)

// While a cluster runs, another one in the same process starts only if it has the same gates.
func TestSecondClusterNeedsTheSameGates(t *testing.T) {
	const gate = "CRIListStreaming" // alpha, and a kubelet's: no server behaves otherwise
	c := start(t, func(config *server.Config) { config.APIServerArgs = []string{"feature-gates=" + gate + "=true"} })
	on := func() {
		t.Helper()
		if !utilfeature.DefaultFeatureGate.Enabled(gate) {
			t.Fatal("the gate of the cluster that runs is off")
		}
	}
	on()
	other := server.Config{DataDir: t.TempDir()}
	for _, err := range []error{other.Validate(t.Context()), server.Run(t.Context(), other)} {
		if !errors.Is(err, apiserver.ErrOtherGates) || !strings.Contains(err.Error(), gate+"=true and not false") {
			t.Errorf("other gates: got %v", err)
		}
		on()
	}
	second := start(t, func(config *server.Config) {
		config.APIServerArgs = []string{"feature-gates=" + gate + "=true"}
		config.NoControllers, config.DisableScheduler = true, true // upstream's exist only once in a process
	})
	on()
	second.cancel()
	<-second.done
	if second.err != nil {
		t.Error(second.err)
	}
	on()
	c.down(t)
	if utilfeature.DefaultFeatureGate.Enabled(gate) {
		t.Error("the gate is on after the last cluster")
	}
	if err := other.Validate(t.Context()); err != nil {
		t.Error(err)
	}
}

// No default of Karve's contradicts a feature gate: whatever gate a user sets, a start refuses no option that
// the user has not given.
func TestDefaultsFollowTheGates(t *testing.T) {
	settings := []string{"AllBeta=false", "AllAlpha=true", "AllAlpha=true,AllBeta=false"}
	for name, spec := range utilfeature.DefaultMutableFeatureGate.GetAll() {
		if !spec.LockToDefault && !strings.HasPrefix(string(name), "All") {
			settings = append(settings, fmt.Sprintf("%s=%v", name, !spec.Default))
		}
	}
	for _, setting := range settings {
		config := server.Config{DataDir: t.TempDir(), APIServerArgs: []string{"feature-gates=" + setting}}
		if err := config.Validate(t.Context()); err != nil && !errors.Is(err, apiserver.ErrFeatureGates) { // such as a gate that needs another one
			t.Errorf("%s: %v", setting, err)
		}
	}
	config := server.Config{DataDir: t.TempDir(), APIServerArgs: []string{"feature-gates=RemoteRequestHeaderUID=false", "requestheader-uid-headers=X-Uid"}}
	if err := config.Validate(t.Context()); err == nil || !strings.Contains(err.Error(), "requestheader-uid-headers") {
		t.Errorf("an option of the user's that contradicts a gate: got %v", err)
	}
	start(t, func(config *server.Config) { config.APIServerArgs = []string{"feature-gates=AllBeta=false"} })
}
