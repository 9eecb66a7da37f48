package deviations

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// All stands for every name of Table.
const All = "all"

// ErrUnknown is wrapped by the error of [Parse] for a name that is not in Table.
var ErrUnknown = errors.New("there is no deviation of that name")

// Switches are the deviations that are off. The zero value has all of them on.
type Switches struct{ off string } // names, each between commas: comparable, and copied freely

// Parse switches off the named deviations; [All] stands for all of them. The error joins
// all names that are not in Table, and lists those that are.
func Parse(names []string) (Switches, error) {
	var off, unknown []string
	for _, name := range names {
		switch {
		case name == All:
			off = append(off, Names()...)
		case slices.Contains(Names(), name):
			off = append(off, name)
		default:
			unknown = append(unknown, fmt.Sprintf("%q", name))
		}
	}
	if len(unknown) > 0 {
		return Switches{}, fmt.Errorf("%w: %s; want %s, or %s", ErrUnknown, strings.Join(unknown, ", "), strings.Join(Names(), ", "), All)
	}
	if len(off) == 0 {
		return Switches{}, nil
	}
	slices.Sort(off)
	return Switches{"," + strings.Join(slices.Compact(off), ",") + ","}, nil
}

// On reports whether Karve's own code runs, and not upstream's.
func (s Switches) On(d *Deviation) bool {
	return !strings.Contains(s.off, ","+d.Name+",")
}

// Names are the names in Table.
func Names() []string {
	all := make([]string, len(Table))
	for i, d := range Table {
		all[i] = d.Name
	}
	return all
}
