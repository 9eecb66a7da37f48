package options

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
)

// mistaken is the key of the mistakes in a context.
type mistaken struct{}

// Mistaken is a context for reading what is right on a command line that has a mistake. [ReadFrom] reports the
// mistake together with all others, so such a command line starts nothing.
func Mistaken(ctx context.Context, mistake error) context.Context {
	return context.WithValue(ctx, mistaken{}, errors.Join(mistakes(ctx), mistake))
}

func mistakes(ctx context.Context) error {
	err, _ := ctx.Value(mistaken{}).(error)
	return err
}

// Collects tells whether a command reads its options with [ReadFrom], and so reports all mistakes together.
func Collects(command *cli.Command) bool {
	return slices.Contains([]string{"server", "check", "run"}, command.Name)
}

// Without returns args without the mistake that package cli has found there. One in a variable unsets that. ok is
// false if the mistake is somewhere else.
func Without(err error, args []string, command *cli.Command) (rest []string, ok bool) {
	if m := invalidVariable.FindStringSubmatch(err.Error()); m != nil {
		return args, os.Unsetenv(m[2]) == nil
	}
	name, unknown := Undefined(err)
	quoted := "" // the wrong value
	if m := invalidValue.FindStringSubmatch(err.Error()); m != nil {
		quoted, name = m[1], m[2]
	} else if at := len(args) - 1; strings.HasPrefix(err.Error(), noArgument) {
		return args[:at], at > 0
	}
	for i, arg := range args {
		option, value, whole := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if !strings.HasPrefix(arg, "-") || option != name {
			continue
		}
		next := i + 1
		if !whole && next < len(args) {
			value = args[next]
			// After an option that does not exist, a word is its value, unless the command takes words.
			if !unknown || !strings.HasPrefix(value, "-") && command.ArgsUsage == "" {
				next++
			}
		}
		if quoted == "" || quoted == strconv.Quote(value) {
			return slices.Delete(slices.Clone(args), i, next), true
		}
	}
	return nil, false
}
