package options

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/server/flags"
)

// invalidValue is how package flag refuses a value: it knows one dash only.
var invalidValue = regexp.MustCompile(`^invalid (?:boolean )?value (".*") for (?:flag )?-+([^ :]+): (.*)$`)

// ExplainMistake tells a mistake in the options of a command, and names the nearest
// one where one was misspelt.
func ExplainMistake(err error, command string, known []cli.Flag) error {
	see := "see " + command + " --help"
	if m := invalidValue.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("--%s %s: %s (%s)", m[2], m[1], m[3], see)
	}
	if name, ok := strings.CutPrefix(err.Error(), "flag needs an argument: -"); ok {
		return fmt.Errorf("--%s needs a value (%s)", strings.TrimLeft(name, "-"), see)
	}
	name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	if !ok {
		return fmt.Errorf("%w (%s)", err, see)
	}
	name = strings.TrimLeft(name, "-")
	proposal := see
	names := Names(known)
	long := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return len(name) == 1 })
	if near := flags.Nearest(name, long); near != "" {
		proposal = fmt.Sprintf("did you mean --%s?", near)
	} else if slices.Contains(names, "kube-apiserver-arg") {
		proposal += ", or pass it to its component by --kube-apiserver-arg " + name + "=…"
	}
	return fmt.Errorf("there is no option --%s; %s", name, proposal)
}

func Names(list []cli.Flag) []string {
	var names []string
	for _, f := range list {
		names = append(names, f.Names()...)
	}
	return names
}
