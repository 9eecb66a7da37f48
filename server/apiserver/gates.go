package apiserver

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	cliflag "k8s.io/component-base/cli/flag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
)

// gateFlags are the three flags whose values upstream keeps in a registry that
// is global to the process.
var gateFlags = []string{"feature-gates", "emulated-version", "min-compatibility-version"}

// forgetGates undoes what an earlier configuration in this process left in
// upstream's registry: its flags add to what they were given before, and gates
// stay as they were set.
func forgetGates(sets cliflag.NamedFlagSets, registry basecompatibility.ComponentGlobalsRegistry) error {
	for _, name := range gateFlags {
		switch v := lookup(sets, name).Value.(type) {
		case *cliflag.ColonSeparatedMultimapStringString:
			*v.Multimap = nil
		case pflag.SliceValue:
			_ = v.Replace(nil) // a list of strings takes any
		}
	}
	gates, err := kubeGates(registry)
	if err != nil {
		return err
	}
	for name := range gates.GetAll() {
		if err := gates.ResetFeatureValueToDefault(name); err != nil {
			return fmt.Errorf("reset feature gates: %w", err)
		}
	}
	return nil
}

// tryGates applies the three flags to a copy of the registry. A registry that
// has refused a gate refuses everything from then on; so the process' own must
// only be given what it will take.
func tryGates(sets cliflag.NamedFlagSets, registry basecompatibility.ComponentGlobalsRegistry) error {
	gates, err := kubeGates(registry)
	if err != nil {
		return err
	}
	trial := basecompatibility.NewComponentGlobalsRegistry()
	if err := trial.Register(basecompatibility.DefaultKubeComponent, utilcompatibility.DefaultBuildEffectiveVersion(), gates.DeepCopy()); err != nil {
		return fmt.Errorf("copy feature gates: %w", err)
	}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	trial.AddFlags(flags)
	for _, name := range gateFlags {
		f := lookup(sets, name)
		if !f.Changed {
			continue
		}
		value := f.Value.String()
		if list, ok := f.Value.(pflag.SliceValue); ok {
			value = strings.Join(list.GetSlice(), ",")
		}
		if err := flags.Set(name, value); err != nil {
			return fmt.Errorf("%w: %w", ErrFeatureGates, err)
		}
	}
	if err := trial.Set(); err != nil {
		return fmt.Errorf("%w: %w", ErrFeatureGates, err)
	}
	return nil
}

func kubeGates(registry basecompatibility.ComponentGlobalsRegistry) (featuregate.MutableVersionedFeatureGate, error) {
	gates, ok := registry.FeatureGateFor(basecompatibility.DefaultKubeComponent).(featuregate.MutableVersionedFeatureGate)
	if !ok {
		return nil, errors.New("upstream's feature gates cannot be set")
	}
	return gates, nil
}

// lookup finds a flag; one that upstream no longer has is an empty one.
func lookup(sets cliflag.NamedFlagSets, name string) *pflag.Flag {
	for _, set := range sets.FlagSets {
		if f := set.Lookup(name); f != nil {
			return f
		}
	}
	return &pflag.Flag{}
}
