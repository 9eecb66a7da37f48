package install

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/server/flags"
)

// Options are those of karve server that a user gave, by name. An option without values leaves the configuration.
type Options map[string][]string

// Known are the names of the options of karve server, and whether each has a value.
type Known map[string]bool

// withNode separates the options of a server from those of its node.
const withNode = "--with-node"

// otherVariables are no options of a server.
var otherVariables = []string{"DOWNLOAD_URL", "BINARY", "REQUIRE_SIGNATURE", "VERSION", "INSTALL_CHECK", "INSTALL_TIMEOUT"}

// ReadOptions reads the options of a server from variables and arguments; arguments come first. What
// follows --with-node is returned as node, which is nil if that is not there.
func ReadOptions(args, environ []string, known Known) (given Options, node []string, err error) {
	given = Options{}
	var problems []error
	add := func(into Options, from, name, value string) {
		if strings.Contains(value, "\n") {
			problems = append(problems, fmt.Errorf("%s: the value has a line break: write it into the configuration file by hand", from))
		}
		values := into[name]
		if value != "" {
			values = append(values, value)
		}
		into[name] = values // also if there are none
	}
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		word, ours := strings.CutPrefix(name, "KARVE_")
		if !ours || value == "" || slices.Contains(otherVariables, word) {
			continue
		}
		option := strings.ToLower(strings.ReplaceAll(word, "_", "-"))
		if err := known.check(option, name); err != nil {
			problems = append(problems, err)
			continue
		}
		add(given, name, option, value)
	}
	if len(args) > 0 && args[0] == "server" {
		args = args[1:]
	}
	fromArgs := Options{}
	for len(args) > 0 && args[0] != withNode {
		arg := args[0]
		args = args[1:]
		name, value, hasValue := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if !strings.HasPrefix(arg, "--") || name == "" {
			problems = append(problems, fmt.Errorf("this takes options of karve server (--name value), got %q", arg))
			continue
		}
		if err := known.check(name, "--"+name); err != nil {
			problems = append(problems, err)
			continue
		}
		if !hasValue && !known[name] {
			value = "true"
		} else if !hasValue {
			if len(args) == 0 || args[0] == withNode {
				problems = append(problems, fmt.Errorf("--%s needs a value", name))
				continue
			}
			value, args = args[0], args[1:]
		}
		add(fromArgs, "--"+name, name, value)
	}
	if len(args) > 0 {
		node = append([]string{}, args[1:]...)
	}
	for name, values := range fromArgs {
		given[name] = values
	}
	return given, node, errors.Join(problems...)
}

// check fails if there is no such option, or none that belongs into the configuration file.
func (k Known) check(name, from string) error {
	if name == "config" {
		return fmt.Errorf("%s: leave it out, because the options go to a configuration file", from)
	}
	if _, ok := k[name]; ok {
		return nil
	}
	var names []string
	for n := range k {
		names = append(names, n)
	}
	slices.Sort(names)
	hint := ""
	if near := flags.Nearest(name, names); near != "" {
		hint = "; did you mean --" + near + "?"
	}
	return fmt.Errorf("%s: there is no option --%s%s (see karve server --help --all)", from, name, hint)
}
