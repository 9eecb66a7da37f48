package options

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/internal/configfile"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/flags"
)

// How package flag and cli refuse a value: that of an option, which is named with one dash
// only, and that of a variable.
var (
	invalidValue    = regexp.MustCompile(`^invalid (?:boolean )?value (".*") for (?:flag )?-+([^ :]+): (.*)$`)
	invalidVariable = regexp.MustCompile(`^could not parse (".*") as .* value from environment variable "([^"]+)" for flag ([^ :]+): .*$`)
)

// noArgument is how package flag begins to say that an option at the end has no value.
const noArgument = "flag needs an argument: -"

// ExplainMistake is the error for a mistake in the options of a command, and names the nearest
// option if one was misspelt.
func ExplainMistake(err error, command string, known []cli.Flag) error {
	see := "see " + command + " --help"
	if m := invalidValue.FindStringSubmatch(err.Error()); m != nil {
		if m[1] == `"--"` {
			return needsValue(m[2], known, see)
		}
		return fmt.Errorf("%s %s: want %s (%s)", dashed(m[2]), m[1], wanted(m[2], known), see)
	}
	if m := invalidVariable.FindStringSubmatch(err.Error()); m != nil {
		return fmt.Errorf("%s=%s: want %s (%s)", m[2], m[1], wanted(m[3], known), see)
	}
	if name, ok := strings.CutPrefix(err.Error(), noArgument); ok {
		return needsValue(strings.TrimLeft(name, "-"), known, see)
	}
	name, ok := Undefined(err)
	if !ok {
		return fmt.Errorf("%w (%s)", err, see)
	}
	return fmt.Errorf("there is no option %s; %s", dashed(name), cmp.Or(proposal(name, Names(known), dashed), see))
}

// removed are options of earlier releases, with what replaces them.
var removed = map[string]string{
	"approve-kubelet-serving": "karve kubectl certificate approve approves serving certificates, or an approver that runs in the cluster (docs/nodes.md#serving-certificates-of-kubelets)",
}

// gone are options of other commands of earlier releases, with what replaces them.
var gone = map[string]string{
	"dry-run":    "-o yaml | karve kubectl diff -f - shows what would change",
	"groups":     "a token is for a machine that joins; others are Secrets of the type bootstrap.kubernetes.io/token",
	"usages":     "a token is for a machine that joins; others are Secrets of the type bootstrap.kubernetes.io/token",
	"kubeconfig": "run this on the server's machine",
}

// proposal is what to write for an option that does not exist: where upstream's options go, or the nearest of known. It is empty
// if nothing is like it. written is an option as the user writes it.
func proposal(name string, known []string, written func(option string) string) string {
	if instead := removed[name]; instead != "" {
		return instead
	}
	if slices.Contains(known, "kube-apiserver-arg") {
		by, instead := server.UpstreamOption(name)
		switch {
		case len(by) > 0:
			return fmt.Sprintf("pass it to its component by --%s %s=…", strings.Join(by, " or --"), name)
		case instead != "":
			return instead
		}
	} else if gone[name] != "" {
		return gone[name]
	}
	long := slices.DeleteFunc(slices.Clone(known), func(name string) bool { return len(name) == 1 })
	if near := flags.Nearest(name, long); near != "" {
		return "did you mean " + written(near) + "?"
	}
	return ""
}

// Undefined is the name of the option that an error of cli says does not exist.
func Undefined(err error) (name string, ok bool) {
	name, ok = strings.CutPrefix(err.Error(), "flag provided but not defined: -")
	return strings.TrimLeft(name, "-"), ok
}

// CheckValues refuses text options whose value is --: that ends the options, and a value is
// missing before it. It also refuses those that a shell should have expanded, and forms of output that a command does not have.
func CheckValues(c *cli.Context) error {
	for _, f := range c.Command.Flags {
		name := f.Names()[0]
		var values []string
		switch f.(type) {
		case *cli.StringFlag:
			values = []string{c.String(name)}
			if values[0] == "--" {
				return needsValue(name, c.Command.Flags, "see karve "+c.Command.Name+" --help")
			}
			if name == "output" && values[0] != "" && !slices.Contains(Values(f), values[0]) {
				return fmt.Errorf("--output %q: want %s", values[0], strings.Join(Values(f), " or "))
			}
		case *cli.StringSliceFlag:
			values = c.StringSlice(name)
		}
		for _, value := range values {
			if err := configfile.CheckExpanded(value); err != nil {
				return fmt.Errorf("--%s %w", name, err)
			}
		}
	}
	return nil
}

func needsValue(name string, known []cli.Flag, see string) error {
	return fmt.Errorf("%s needs %s (%s)", dashed(name), wanted(name, known), see)
}

// wanted says which values an option takes.
func wanted(name string, known []cli.Flag) string {
	at := slices.IndexFunc(known, func(f cli.Flag) bool { return slices.Contains(f.Names(), name) })
	if at < 0 {
		return "a value"
	}
	switch known[at].(type) {
	case *cli.IntFlag:
		switch name {
		case "secure-port":
			return "a number from 0 to 65535"
		case "insecure-port":
			return "a number from -1 to 65535"
		}
		return "a number"
	case *cli.DurationFlag:
		return "a duration such as 30s or 5m"
	case *cli.BoolFlag:
		return "true or false"
	}
	if values := Values(known[at]); len(values) > 0 {
		return strings.Join(values, " or ")
	}
	return "a value"
}

// isSwitch tells whether an option is on or off.
func isSwitch(name string, known []cli.Flag) bool {
	return slices.ContainsFunc(known, func(f cli.Flag) bool {
		_, is := f.(*cli.BoolFlag)
		return is && slices.Contains(f.Names(), name)
	})
}

// dashed is an option as it is written on the command line.
func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}

// Names are those of options, without dashes.
func Names(list []cli.Flag) []string {
	var names []string
	for _, f := range list {
		names = append(names, f.Names()...)
	}
	return names
}
