package options

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/internal/configfile"
)

// loadConfig reads the file that --config names. If it names none, that is usual, which need not exist. It returns
// the path of what it has read. The error joins all problems; the values are those without one.
func loadConfig(c *cli.Context, usual string) (path string, values configfile.Options, err error) {
	path = cmp.Or(c.String("config"), usual)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && c.String("config") == "":
		return "", nil, nil
	case err != nil:
		return "", nil, fmt.Errorf("--config: %w", err)
	}
	values, problems := configfile.Parse(text)
	for i, problem := range problems {
		problems[i] = fmt.Errorf("--config %s: %w", path, problem)
	}
	return path, values, errors.Join(problems...)
}

// applyConfig sets the options that neither the command line nor a variable has set from the
// configuration file, which [loadConfig] finds. Its keys are the names of options, and its lists are lists. A key that is no
// option is an error.
func applyConfig(c *cli.Context, usual string) (path string, err error) {
	path, values, err := loadConfig(c, usual)
	known := settable(c.Command.Flags)
	problems := []error{err}
	for _, v := range values {
		switch {
		case !slices.Contains(known, v.Name):
			problem := fmt.Sprintf("--config %s: line %d: there is no option %q; %s", path, v.Line, v.Name, proposal(v.Name, known, strconv.Quote))
			problems = append(problems, errors.New(strings.TrimSuffix(problem, "; ")))
		case v.Name == "config":
			problems = append(problems, fmt.Errorf("--config %s: line %d: a configuration file cannot name another", path, v.Line))
		case c.IsSet(v.Name): // the command line and variables come first
		case len(v.Values) == 0 && isSwitch(v.Name, c.Command.Flags): // whoever writes its name alone may mean that it is on
			problems = append(problems, fmt.Errorf("--config %s: line %d: %s: want %s", path, v.Line, v.Name, wanted(v.Name, c.Command.Flags)))
		default:
			for _, value := range v.Values {
				if err := c.Set(v.Name, value); err != nil {
					problems = append(problems, fmt.Errorf("--config %s: line %d: %s: %q: want %s", path, v.Line, v.Name, value, wanted(v.Name, c.Command.Flags)))
				}
			}
		}
	}
	return path, errors.Join(problems...)
}

// settable are the names of the options that a configuration file can set: those of a server.
func settable(list []cli.Flag) []string {
	return Names(slices.DeleteFunc(slices.Clone(list), func(f cli.Flag) bool { return sectionOf(f) == otherSection }))
}

// DefaultFile is the configuration file that is read if it exists. A file named by --config must exist.
var DefaultFile = "/etc/karve/config.yaml"
