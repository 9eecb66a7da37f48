package server

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/features"

	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/server/lifecycle"
)

// Every controller that upstream runs by default runs here. The test notices a new controller,
// and one that an option of Karve's switches off.
func TestEveryDefaultControllerIsBuilt(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	var log bytes.Buffer
	c := Config{DataDir: t.TempDir()}
	c.Log, _ = logbridge.New(&log, "text", "warning") // these are valid
	full := c.complete()
	plan, releaseGates, err := full.plan(t.Context())
	fatal(t, err)
	defer releaseGates()
	claim, err := plan.claim(full.Log)
	fatal(t, err)
	defer claim.release()
	s := assemble(plan, claim, lifecycle.NewStart())
	parts := s.parts()
	var built []string
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err = lifecycle.Run(ctx, parts, func(string, string) {}, func() error {
		built = s.controlling.Names()
		cancel()
		return nil
	}, func() {})
	if err != nil {
		t.Fatalf("%v; log:\n%s", err, log.String())
	}

	var want []string
	for name, d := range app.NewControllerDescriptors() {
		off := d.IsDisabledByDefault() && !slices.Contains([]string{names.BootstrapSignerController, names.TokenCleanerController}, name)
		gated := slices.ContainsFunc(d.GetRequiredFeatureGates(), func(f featuregate.Feature) bool {
			return !utilfeature.DefaultFeatureGate.Enabled(f)
		})
		if name == names.StorageVersionMigratorController { // this controller checks its gate itself
			gated = !utilfeature.DefaultFeatureGate.Enabled(features.StorageVersionMigrator)
		}
		if !off && !gated {
			want = append(want, name)
		}
	}
	slices.Sort(built)
	slices.Sort(want)
	if !slices.Equal(built, want) {
		t.Errorf("built\n%s\nwant\n%s", strings.Join(built, " "), strings.Join(want, " "))
	}
	if len(want) < 35 {
		t.Errorf("only %d controllers: has upstream's table moved?", len(want))
	}
}
