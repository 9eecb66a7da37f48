// Package flags applies options a user passes through to an upstream component
// (--kube-apiserver-arg name=value and its kin) to that component's own flag
// sets, so that what upstream would refuse is refused, and a misspelt name is
// an error that proposes the nearest one.
package flags

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"github.com/xrash/smetrics"
	cliflag "k8s.io/component-base/cli/flag"
)

// Apply sets every name=value of args on the flags of component and returns
// all the problems, joined. option is the name of the option the user wrote,
// without dashes, for the messages.
//
// owned are the flags that would have no effect, or that Karve sets itself because another part depends on
// their value; "[NAME]" is all flags of a set. The reason is the map's value and is told to the user.
func Apply(component, option string, sets cliflag.NamedFlagSets, owned map[string]string, args []string) error {
	all := pflag.NewFlagSet(component, pflag.ContinueOnError)
	for _, set := range sets.FlagSets {
		all.AddFlagSet(set)
	}
	var errs []error
	for _, arg := range args {
		name, value, hasValue := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		flag := all.Lookup(name)
		switch reason := reason(sets, owned, name); {
		case flag == nil:
			errs = append(errs, fmt.Errorf("--%s: %s has no flag %q%s", option, component, name, propose(name, all)))
			continue
		case reason != "":
			errs = append(errs, fmt.Errorf("--%s: %s is not for users: %s", option, name, reason))
			continue
		case !hasValue && flag.NoOptDefVal != "":
			value = flag.NoOptDefVal
		case !hasValue:
			errs = append(errs, fmt.Errorf("--%s: %s needs a value: %s=…", option, name, name))
			continue
		}
		if err := all.Set(name, value); err != nil {
			errs = append(errs, fmt.Errorf("--%s: %s=%s: %w", option, name, value, cause(err)))
		}
	}
	return errors.Join(errs...)
}

// Reasons of the controllers and the scheduler.
const (
	NoLimit    = "requests from within this process have no limit"
	OneVersion = "all parts have one version: use --kube-apiserver-arg"
)

// Find reports whether sets have a flag. If it is one of owned, instead is what to use in its place.
func Find(sets cliflag.NamedFlagSets, owned map[string]string, name string) (found bool, instead string) {
	for _, set := range sets.FlagSets {
		found = found || set.Lookup(name) != nil
	}
	return found, reason(sets, owned, name)
}

// reason returns why a flag is one of owned, or nothing.
func reason(sets cliflag.NamedFlagSets, owned map[string]string, name string) string {
	for section, set := range sets.FlagSets {
		if set.Lookup(name) != nil {
			return cmp.Or(owned[name], owned["["+section+"]"])
		}
	}
	return ""
}

// cause strips pflag's own sentence, which repeats name and value.
func cause(err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) && invalid.Unwrap() != nil {
		return invalid.Unwrap()
	}
	return err
}

func propose(name string, set *pflag.FlagSet) string {
	var names []string
	set.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	if near := Nearest(name, names); near != "" {
		return fmt.Sprintf("; did you mean %q?", near)
	}
	return ""
}

// Nearest is the name of names that word was most likely meant to be, or the
// empty string when none is close: at most a third of its letters differ.
func Nearest(word string, names []string) string {
	if near := nearest(word, names, len(word)/3+1); near != "" {
		return near
	}
	for _, name := range slices.Sorted(slices.Values(names)) { // an abbreviation is not a spelling mistake
		if min(len(word), len(name)) >= 4 && (strings.Contains(name, word) || strings.Contains(word, name)) {
			return name
		}
	}
	return ""
}

// Misspelt is the name that word is an obvious misspelling of: two letters are wrong,
// missing or too many at most, or swapped. It is empty if there is none.
func Misspelt(word string, names []string) string { return nearest(word, names, 3) }

// nearest is the name with the least edit distance, below limit.
func nearest(word string, names []string, limit int) string {
	best := ""
	for _, name := range slices.Sorted(slices.Values(names)) { // ties go to the first by name
		if d := smetrics.WagnerFischer(word, name, 1, 1, 1); d < limit {
			best, limit = name, d
		}
	}
	return best
}
