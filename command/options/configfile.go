package options

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"

	"github.com/karve-k8s/karve/server/flags"
)

// loadConfig reads the file that --config names. If it names none, that is usual, which need not exist. It returns
// the path of what it has read.
func loadConfig(c *cli.Context, usual string) (path string, values configValues, err error) {
	path = cmp.Or(c.String("config"), usual)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && c.String("config") == "":
		return "", nil, nil
	case err != nil:
		return "", nil, fmt.Errorf("--config: %w", err)
	}
	if values, err = parseConfig(text); err != nil {
		return path, nil, fmt.Errorf("--config %s: %w", path, err)
	}
	return path, values, nil
}

// applyConfig sets the options that neither the command line nor a variable has set from the
// configuration file, which [loadConfig] finds. Its keys are the names of options, and its lists are lists. A key that is no
// option is an error.
func applyConfig(c *cli.Context, usual string) (path string, err error) {
	path, values, err := loadConfig(c, usual)
	if err != nil {
		return path, err
	}
	known := settable(c.Command.Flags)
	var problems []error
	for _, v := range values {
		switch {
		case !slices.Contains(known, v.name):
			proposal := ""
			if near := flags.Nearest(v.name, known); near != "" {
				proposal = fmt.Sprintf("; did you mean %q?", near)
			}
			problems = append(problems, fmt.Errorf("--config %s: line %d: there is no option %q%s", path, v.line, v.name, proposal))
		case v.name == "config":
			problems = append(problems, fmt.Errorf("--config %s: line %d: a configuration file cannot name another", path, v.line))
		case c.IsSet(v.name): // the command line and variables come first
		default:
			for _, value := range v.values {
				if err := c.Set(v.name, value); err != nil {
					problems = append(problems, fmt.Errorf("--config %s: line %d: %s: %q: want %s", path, v.line, v.name, value, wanted(v.name, c.Command.Flags)))
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

// configValue is one line of the configuration file, as text: 0640 is a mode, not the number 416.
type configValue struct {
	name   string
	values []string
	line   int
}

// configValues are the lines of a configuration file; each name is in one of them.
type configValues []configValue

// all are the values of an option.
func (c configValues) all(name string) []string {
	for _, v := range c {
		if v.name == name {
			return v.values
		}
	}
	return nil
}

// last is the value that counts of an option that takes one.
func (c configValues) last(name string) string {
	if values := c.all(name); len(values) > 0 {
		return values[len(values)-1]
	}
	return ""
}

var errForm = errors.New("want name: value, or name: and a list of values")

func parseConfig(text []byte) (configValues, error) {
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	// Options in another document would be ignored, even those that protect something.
	for {
		var another yaml.Node
		if err := decoder.Decode(&another); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if !isEmpty(another) {
			return nil, fmt.Errorf("line %d: a second document begins (---): put all options into one", another.Line)
		}
	}
	if isEmpty(document) {
		return nil, nil
	}
	root := document.Content[0]
	if root.Kind != yaml.MappingNode {
		return nil, errForm
	}
	var all configValues
	seen := map[string]bool{}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if seen[key.Value] {
			return nil, fmt.Errorf("line %d: %s: given twice", key.Line, key.Value)
		}
		seen[key.Value] = true
		items := []*yaml.Node{value}
		if value.Kind == yaml.SequenceNode {
			items = value.Content
		}
		v := configValue{name: key.Value, line: key.Line}
		for _, item := range items {
			if item.Kind != yaml.ScalarNode {
				return nil, fmt.Errorf("line %d: %s: %w", item.Line, key.Value, errForm)
			}
			v.values = append(v.values, item.Value)
		}
		all = append(all, v)
	}
	return all, nil
}

func isEmpty(document yaml.Node) bool {
	return len(document.Content) == 0 || document.Content[0].Tag == "!!null"
}

// DefaultFile is the configuration file that is read if it exists. A file named by --config must exist.
var DefaultFile = systemConfigFile()

// systemConfigFile is /etc/karve/config.yaml. On Windows, where every user may create such a
// directory, it is the user's own.
func systemConfigFile() string {
	if runtime.GOOS != "windows" {
		return "/etc/karve/config.yaml"
	}
	dir, err := os.UserConfigDir()
	if err != nil {
		return "" // no %AppData%: there is none
	}
	return filepath.Join(dir, "karve", "config.yaml")
}
