package apiserver

import (
	"cmp"
	"slices"
	"strings"

	"k8s.io/component-base/featuregate"
)

// FeatureGate is one of the feature gates of this Kubernetes version.
type FeatureGate struct {
	Name    string `json:"name"`
	Default bool   `json:"default"`
	Stage   string `json:"stage"`  // alpha, beta, GA or deprecated
	Locked  bool   `json:"locked"` // its value cannot be changed
}

// FeatureGates returns all feature gates that --feature-gates accepts, sorted by name.
func FeatureGates() ([]FeatureGate, error) {
	trial, err := trialRegistry()
	if err != nil {
		return nil, err
	}
	all, err := registered(trial)
	if err != nil {
		return nil, err
	}
	var list []FeatureGate
	for name, spec := range all.gates.GetAll() {
		stage := strings.ToLower(string(spec.PreRelease))
		if spec.PreRelease == featuregate.GA {
			stage = "GA"
		}
		list = append(list, FeatureGate{Name: string(name), Default: spec.Default, Stage: stage, Locked: spec.LockToDefault})
	}
	slices.SortFunc(list, func(a, b FeatureGate) int { return cmp.Compare(a.Name, b.Name) })
	return list, nil
}
