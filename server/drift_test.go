package server

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
	"k8s.io/kubernetes/pkg/features"

	"github.com/karve-k8s/karve/internal/logbridge"
	"github.com/karve-k8s/karve/server/lifecycle"
)

func TestExtraControllersExistAndAreOffUpstream(t *testing.T) {
	for _, name := range extraControllers {
		if !slices.Contains(app.KnownControllers(), name) {
			t.Errorf("%s: upstream has no such controller", name)
		}
		if !slices.Contains(app.ControllersDisabledByDefault(), name) {
			t.Errorf("%s: upstream has it on by default, it needs no mention here", name)
		}
	}
}

// The token controller is the only one that app.BuildControllers would not
// build by itself; another such would be missing in Karve.
func TestTokenControllerIsTheOnlySpecialOne(t *testing.T) {
	var special []string
	for name, d := range app.NewControllerDescriptors() {
		if d.RequiresSpecialHandling() {
			special = append(special, name)
		}
	}
	if want := []string{names.ServiceAccountTokenController}; !slices.Equal(special, want) {
		t.Errorf("controllers that upstream handles specially: got %v, want %v", special, want)
	}
}

// Every controller that upstream runs by default runs here: one that is new, or
// that some option of ours switches off, is not missed.
func TestEveryDefaultControllerIsBuilt(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane")
	}
	var log bytes.Buffer
	c := Config{DataDir: t.TempDir(), ClusterCIDR: "10.244.0.0/16"} // or there is no node-ipam-controller
	c.Log, _ = logbridge.New(&log, "text", "warning")               // these are valid
	s := newControlPlane(c)
	if err := s.claim(); err != nil {
		t.Fatal(err)
	}
	defer s.release()
	parts := []lifecycle.Part{
		{Name: certificatesPart, Run: s.runCertificates},
		{Name: datastorePart, Run: s.runStorage},
		{Name: apiserverPart, Needs: []string{certificatesPart, datastorePart}, Run: s.runAPIServer},
		{Name: controllersPart, Needs: []string{apiserverPart}, Run: s.runControllers},
	}
	for i, p := range parts {
		parts[i] = lifecycle.Within(time.Minute, p, s.lastErrorOf(p.Name))
	}
	built := []string{names.ServiceAccountTokenController} // has no check, but a failure to build it is one to start
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := lifecycle.Run(ctx, parts, func(string, string) {}, func() error {
		s.controllers.mu.Lock()
		defer s.controllers.mu.Unlock()
		for _, check := range s.controllers.checks {
			built = append(built, check.Name())
		}
		cancel()
		return nil
	})
	if err != nil {
		t.Fatalf("%v; log:\n%s", err, log.String())
	}

	var want []string
	for name, d := range app.NewControllerDescriptors() {
		off := d.IsDisabledByDefault() && !slices.Contains(extraControllers, name)
		gated := slices.ContainsFunc(d.GetRequiredFeatureGates(), func(f featuregate.Feature) bool {
			return !utilfeature.DefaultFeatureGate.Enabled(f)
		})
		if name == names.StorageVersionMigratorController { // looks at its gate by itself
			gated = !utilfeature.DefaultFeatureGate.Enabled(features.StorageVersionMigrator)
		}
		if !off && !gated && !d.IsCloudProviderController() {
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
