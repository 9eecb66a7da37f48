package apiserver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/pflag"
	genericoptions "k8s.io/apiserver/pkg/server/options"
	utilcompatibility "k8s.io/apiserver/pkg/util/compatibility"
	cliflag "k8s.io/component-base/cli/flag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
)

// ErrOtherGates is wrapped by the error of a start or a validation that needs other feature
// gates or emulated versions than a server that runs in this process.
var ErrOtherGates = fmt.Errorf("%w: another cluster in this process uses different values, and Kubernetes has one set per process", ErrFeatureGates)

// gateFlags are the three flags whose values upstream keeps in a process-wide registry.
var gateFlags = []string{"feature-gates", "emulated-version", "min-compatibility-version"}

// Gates are the feature gates and versions that a configuration asks for.
type Gates struct {
	version basecompatibility.MutableEffectiveVersion
	gates   featuregate.MutableVersionedFeatureGate
}

// processGates counts the servers, starts and validations that rely on the process' gates,
// which upstream's registry holds. The first of them sets the gates, and the last one restores
// them.
var processGates struct {
	sync.Mutex
	holders int
	restore func() error
}

// GatesOf reads the gates of a configuration. It does not look at those of the process.
func GatesOf(c Config) (*Gates, error) {
	trial, err := trialRegistry()
	if err != nil {
		return nil, err
	}
	set := pflag.NewFlagSet("", pflag.ContinueOnError)
	trial.AddFlags(set)
	set.SetNormalizeFunc(cliflag.WordSepNormalizeFunc)
	for _, arg := range c.Args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if slices.Contains(gateFlags, string(cliflag.WordSepNormalizeFunc(set, name))) {
			if err := set.Set(name, value); err != nil {
				return nil, fmt.Errorf("%w: %w", ErrFeatureGates, err)
			}
		}
	}
	return gatesOf(trial)
}

// gatesOf applies the flags that the trial registry was given, and returns the resulting
// gates. Upstream's components would each report versions that are out of range.
func gatesOf(trial basecompatibility.ComponentGlobalsRegistry) (*Gates, error) {
	if err := trial.Set(); err != nil {
		return nil, fmt.Errorf("%w: %w (karve server --help --all lists them)", ErrFeatureGates, err)
	}
	g, err := registered(trial)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(g.version.Validate()...); err != nil {
		return nil, &versionError{err}
	}
	return g, nil
}

// versionError is an [ErrFeatureGates] whose text names the flags of versions.
type versionError struct{ problem error }

func (e *versionError) Error() string {
	return "--kube-apiserver-arg emulated-version, min-compatibility-version: " + e.problem.Error()
}

func (e *versionError) Is(target error) bool { return target == ErrFeatureGates }

func (e *versionError) Unwrap() error { return e.problem }

// trialRegistry returns a registry with upstream's defaults.
func trialRegistry() (basecompatibility.ComponentGlobalsRegistry, error) {
	ours, err := registered(genericoptions.NewServerRunOptions().ComponentGlobalsRegistry)
	if err != nil {
		return nil, err
	}
	trial := basecompatibility.NewComponentGlobalsRegistry()
	gates := ours.gates.DeepCopyAndReset()
	// The copy lacks the dependencies of gates. Without them, Hold would be the first to refuse
	// a set of gates, and upstream's gates cannot be restored from there.
	if err := gates.AddDependencies(ours.gates.Dependencies()); err != nil {
		return nil, fmt.Errorf("copy dependencies of feature gates: %w", err)
	}
	if err := trial.Register(basecompatibility.DefaultKubeComponent, utilcompatibility.DefaultBuildEffectiveVersion(), gates); err != nil {
		return nil, fmt.Errorf("copy feature gates: %w", err)
	}
	return trial, nil
}

func registered(r basecompatibility.ComponentGlobalsRegistry) (*Gates, error) {
	gates, ok := r.FeatureGateFor(basecompatibility.DefaultKubeComponent).(featuregate.MutableVersionedFeatureGate)
	version, ok2 := r.EffectiveVersionFor(basecompatibility.DefaultKubeComponent).(basecompatibility.MutableEffectiveVersion)
	if !ok || !ok2 {
		return nil, errors.New("upstream's feature gates cannot be set")
	}
	return &Gates{version, gates}, nil
}

// Hold makes these the process' gates until release is called. In the meantime, a Hold of
// different gates fails with [ErrOtherGates].
func (g *Gates) Hold() (release func(), err error) {
	processGates.Lock()
	defer processGates.Unlock()
	registry := genericoptions.NewServerRunOptions().ComponentGlobalsRegistry
	process, err := registered(registry)
	if err != nil {
		return nil, err
	}
	different := g.differences(process)
	switch {
	case len(different) > 0 && processGates.holders > 0:
		return nil, fmt.Errorf("%w (%s)", ErrOtherGates, strings.Join(different, ", "))
	case processGates.holders == 0:
		// Otherwise the options of the controllers and the scheduler would call Set, and
		// report problems. No flag of the registry has a value, so nothing changes.
		if err := registry.Set(); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFeatureGates, err)
		}
		restore, err := process.become(g)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%w: %w", ErrFeatureGates, err), restore())
		}
		processGates.restore = restore
	}
	processGates.holders++
	return sync.OnceFunc(func() {
		processGates.Lock()
		defer processGates.Unlock()
		if processGates.holders--; processGates.holders == 0 {
			_ = processGates.restore() // these values were valid before
		}
	}), nil
}

// differences lists the values that differ in another set.
func (g *Gates) differences(other *Gates) []string {
	var all []string
	if a, b := g.version.EmulationVersion(), other.version.EmulationVersion(); !a.EqualTo(b) {
		all = append(all, fmt.Sprintf("emulated-version=%s and not %s", b, a))
	}
	if a, b := g.version.MinCompatibilityVersion(), other.version.MinCompatibilityVersion(); !a.EqualTo(b) {
		all = append(all, fmt.Sprintf("min-compatibility-version=%s and not %s", b, a))
	}
	theirs := enabled(other.gates)
	for name, a := range enabled(g.gates) {
		if b := theirs[name]; a != b {
			all = append(all, fmt.Sprintf("%s=%v and not %v", name, b, a))
		}
	}
	slices.Sort(all)
	return all
}

// become gives g the values of want. restore undoes that.
func (g *Gates) become(want *Gates) (restore func() error, err error) {
	was := &Gates{gates: g.gates.DeepCopy()}
	emulated, compatible := g.version.EmulationVersion(), g.version.MinCompatibilityVersion()
	restore = func() error {
		g.version.SetEmulationVersion(emulated)
		g.version.SetMinCompatibilityVersion(compatible)
		return g.setGates(was.gates)
	}
	g.version.SetEmulationVersion(want.version.EmulationVersion())
	g.version.SetMinCompatibilityVersion(want.version.MinCompatibilityVersion())
	return restore, g.setGates(want.gates)
}

// setGates gives the gates the values of want. It does not touch a gate that has its value
// already.
func (g *Gates) setGates(want featuregate.MutableVersionedFeatureGate) error {
	emulated, compatible := g.version.EmulationVersion(), g.version.MinCompatibilityVersion()
	if !emulated.EqualTo(g.gates.EmulationVersion()) || !compatible.EqualTo(g.gates.MinCompatibilityVersion()) {
		if err := g.gates.SetEmulationVersionAndMinCompatibilityVersion(emulated, compatible); err != nil {
			return err
		}
	}
	wanted := enabled(want)
	// different returns the gates of which g has another value.
	different := func() (names []featuregate.Feature) {
		have := enabled(g.gates)
		for name, value := range wanted {
			if have[name] != value || g.gates.ExplicitlySet(name) != want.ExplicitlySet(name) {
				names = append(names, name)
			}
		}
		return names
	}
	reset := different()
	if len(reset) == 0 {
		return nil
	}
	for _, name := range reset {
		if err := g.gates.ResetFeatureValueToDefault(name); err != nil {
			return err
		}
	}
	values := map[string]bool{}
	for _, name := range different() {
		values[string(name)] = wanted[name]
	}
	if len(values) == 0 {
		return nil
	}
	return g.gates.SetFromMap(values)
}

// enabled returns what Enabled would return for every gate. Enabled keeps a record of the gates
// that it was asked for, and copies the record for each new one. For all gates, these copies were an
// eighth of what a start allocates.
func enabled(gates featuregate.MutableVersionedFeatureGate) map[featuregate.Feature]bool {
	all := map[featuregate.Feature]bool{}
	for name, spec := range gates.GetAll() {
		all[name] = spec.Default
	}
	set, ok := gates.(fmt.Stringer) // it prints those that have been set, AllAlpha's and AllBeta's too
	if !ok {
		for name := range all {
			all[name] = gates.Enabled(name)
		}
		return all
	}
	for pair := range strings.SplitSeq(set.String(), ",") {
		name, value, _ := strings.Cut(pair, "=")
		if _, known := all[featuregate.Feature(name)]; known {
			all[featuregate.Feature(name)] = value == "true"
		}
	}
	return all
}
