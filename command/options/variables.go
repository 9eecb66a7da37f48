package options

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/server/flags"
)

// CheckVariables returns an error for each KARVE_… variable whose name is nearly that of an option, as on the command line and in the
// configuration file. Any other may be the user's own, or of a Service named karve in a Pod. A test has those of install.sh and tests.
func CheckVariables(environ, options []string) error {
	var problems []error
	for _, variable := range environ {
		name, _, _ := strings.Cut(variable, "=")
		word, ours := strings.CutPrefix(name, "KARVE_")
		if !ours || slices.Contains(options, name) {
			continue
		}
		if instead := removed[strings.ToLower(strings.ReplaceAll(word, "_", "-"))]; instead != "" {
			problems = append(problems, fmt.Errorf("there is no variable %s; %s", name, instead))
		} else if near := flags.Misspelt(name, options); near != "" {
			problems = append(problems, fmt.Errorf("there is no variable %s; did you mean %s?", name, near))
		}
	}
	return errors.Join(problems...)
}

// RefuseMisspelt makes every command that reads variables check their names first.
func RefuseMisspelt(commands []*cli.Command) {
	options := variablesOf(commands)
	var wrap func([]*cli.Command)
	wrap = func(commands []*cli.Command) {
		for _, command := range commands {
			wrap(command.Subcommands)
			if len(variablesOf([]*cli.Command{{Flags: command.Flags}})) == 0 {
				continue
			}
			before := command.Before
			command.Before = func(c *cli.Context) error {
				err := CheckVariables(os.Environ(), options)
				if err == nil && before != nil {
					err = before(c)
				}
				return err
			}
		}
	}
	wrap(commands)
}

// variablesOf are the names of the variables that commands read.
func variablesOf(commands []*cli.Command) []string {
	var all []string
	for _, command := range commands {
		for _, f := range command.Flags {
			if f, ok := f.(cli.DocGenerationFlag); ok {
				all = append(all, f.GetEnvVars()...)
			}
		}
		all = append(all, variablesOf(command.Subcommands)...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
