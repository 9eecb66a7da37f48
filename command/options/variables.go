package options

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/server/flags"
)

// otherVariables are the variables named KARVE_… that are no options of a command, but of install.sh,
// of tests that start karve, and of this project's scripts and tests. A name that ends in an
// underscore stands for all names that begin with it.
var otherVariables = []string{
	"KARVE_BINARY", "KARVE_DOWNLOAD_URL", "KARVE_INSTALL_CHECK", "KARVE_INSTALL_TIMEOUT", "KARVE_REQUIRE_SIGNATURE",
	"KARVE_VERSION",     // of scripts/build
	"KARVE_CONTROLLERS", // of the kube-apiserver that envtest starts
	"KARVE_CRASHES", "KARVE_CRASH_", "KARVE_HISTORIES", "KARVE_INSECURE_TEST_", "KARVE_LOGBRIDGE_TEST",
	"KARVE_NODES_", "KARVE_PLUG_", "KARVE_STORAGE", "KARVE_TEST_", "KARVE_VM_",
}

// serviceLink is a variable that kubelet sets in Pods for a Service whose name begins with
// karve (https://kubernetes.io/docs/concepts/services-networking/service/#environment-variables).
// A name of the first group is only a Service's if its value is a URL: an option's value may be a port.
var serviceLink = regexp.MustCompile(`^KARVE_(?:[A-Z0-9_]*?_)??(?:SERVICE_HOST|SERVICE_PORT(?:_[A-Z0-9_]+)?|(PORT)|PORT_[0-9]+_(?:TCP|UDP|SCTP)(?:_(?:PROTO|PORT|ADDR))?)$`)

// CheckVariables returns an error for each KARVE_… variable whose name is nearly that of an option, as on the command line and in the
// configuration file. Any other may be the user's own.
func CheckVariables(environ, options []string) error {
	var problems []error
	for _, variable := range environ {
		name, value, _ := strings.Cut(variable, "=")
		if !strings.HasPrefix(name, "KARVE_") || slices.Contains(options, name) || isOther(name) {
			continue
		}
		if m := serviceLink.FindStringSubmatch(name); m != nil && (m[1] == "" || strings.Contains(value, "://")) {
			continue
		}
		if instead := removed[strings.ToLower(strings.ReplaceAll(strings.TrimPrefix(name, "KARVE_"), "_", "-"))]; instead != "" {
			problems = append(problems, fmt.Errorf("there is no variable %s; %s", name, instead))
			continue
		}
		if near := flags.Misspelt(name, options); near != "" {
			problems = append(problems, fmt.Errorf("there is no variable %s; did you mean %s?", name, near))
			continue
		}
	}
	return errors.Join(problems...)
}

func isOther(name string) bool {
	return slices.ContainsFunc(otherVariables, func(other string) bool {
		return name == other || strings.HasSuffix(other, "_") && strings.HasPrefix(name, other)
	})
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
