package command

import (
	"slices"
	"strings"

	"github.com/urfave/cli/v2"
)

// arrange returns args with the options between the command and its arguments, where package cli wants them. Users
// may write them anywhere, as with kubectl. After "--", and in the command of `karve run`, nothing is an option.
func arrange(root *cli.App, args []string) []string {
	if len(args) == 0 || args[len(args)-1] == completionFlag {
		return args
	}
	known := &cli.Command{Flags: allOptions(root.Commands)} // for options before their command
	path, commands, at := args[:1:1], root.Commands, &cli.Command{}
	var options, arguments []string
	for i := 1; i < len(args); i++ {
		arg := args[i]
		name := strings.TrimLeft(arg, "-")
		switch {
		case arg == "--", at.SkipFlagParsing, at.Name == "run" && !strings.HasPrefix(arg, "-"):
			if len(path) == 1 {
				return args
			}
			return slices.Concat(path, options, arguments, args[i:])
		case name != "" && strings.HasPrefix(arg, "-"):
			options = append(options, arg)
			if takesValue(name, at, known) && i+1 < len(args) {
				i++
				options = append(options, args[i])
			}
		default:
			next := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(arg) })
			if next < 0 || len(arguments) > 0 {
				arguments = append(arguments, arg)
				continue
			}
			at = commands[next]
			path, commands = append(path, arg), at.Subcommands
		}
	}
	if len(path) == 1 {
		return args
	}
	return slices.Concat(path, options, arguments)
}

// completionFlag ends the arguments when a shell asks what could come next.
const completionFlag = "--generate-bash-completion"

// asksBehindDashes reports whether a shell asks what could come behind "--". urfave/cli takes completionFlag for an argument there, and
// would act: run what stands behind `karve run --`.
func asksBehindDashes(args []string) bool {
	return len(args) > 0 && args[len(args)-1] == completionFlag && slices.Contains(args, "--")
}

// takesValue reports whether the first of the commands that has an option takes the next argument for its value.
func takesValue(option string, commands ...*cli.Command) bool {
	for _, c := range commands {
		for _, f := range c.Flags {
			if slices.Contains(f.Names(), option) {
				_, is := f.(*cli.BoolFlag)
				return !is
			}
		}
	}
	return false
}

func allOptions(commands []*cli.Command) (all []cli.Flag) {
	for _, c := range commands {
		all = slices.Concat(all, c.Flags, allOptions(c.Subcommands))
	}
	return all
}
