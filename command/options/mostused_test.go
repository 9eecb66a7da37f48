package options

import (
	"slices"
	"testing"
)

// Every name in the tables of the help and of completion is that of an option.
func TestNamesAreOptions(t *testing.T) {
	t.Parallel()
	names := append(Names(Server()), "output", "proxy-mode") // of other commands
	for _, name := range mostUsedNames {
		if !slices.Contains(names, name) {
			t.Errorf("mostUsedNames: there is no option %s", name)
		}
	}
	for name := range shortUsages {
		if !slices.Contains(mostUsedNames, name) {
			t.Errorf("shortUsages: %s is not in mostUsedNames", name)
		}
	}
	for name := range fixedValues {
		if !slices.Contains(names, name) {
			t.Errorf("fixedValues: there is no option %s", name)
		}
	}
}
