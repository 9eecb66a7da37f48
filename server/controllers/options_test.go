package controllers

import (
	"slices"
	"testing"

	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
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
