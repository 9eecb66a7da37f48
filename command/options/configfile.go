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
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"
	"go.yaml.in/yaml/v3"
)

// loadConfig reads the file that --config names. If it names none, that is usual, which need not exist. It returns
// the path of what it has read. The error joins all problems; the values are those without one.
func loadConfig(c *cli.Context, usual string) (path string, values configValues, err error) {
	path = cmp.Or(c.String("config"), usual)
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist) && c.String("config") == "":
		return "", nil, nil
	case err != nil:
		return "", nil, fmt.Errorf("--config: %w", err)
	}
	values, problems := parseConfig(text)
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
		case !slices.Contains(known, v.name):
			problem := fmt.Sprintf("--config %s: line %d: there is no option %q; %s", path, v.line, v.name, proposal(v.name, known, strconv.Quote))
			problems = append(problems, errors.New(strings.TrimSuffix(problem, "; ")))
		case v.name == "config":
			problems = append(problems, fmt.Errorf("--config %s: line %d: a configuration file cannot name another", path, v.line))
		case c.IsSet(v.name): // the command line and variables come first
		case len(v.values) == 0 && isSwitch(v.name, c.Command.Flags): // whoever writes its name alone may mean that it is on
			problems = append(problems, fmt.Errorf("--config %s: line %d: %s: want %s", path, v.line, v.name, wanted(v.name, c.Command.Flags)))
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

// parseConfig returns the values that can be read, and a problem for each of the others.
func parseConfig(text []byte) (all configValues, problems []error) {
	root, err := rootOf(text)
	if root == nil {
		return nil, err
	}
	seen := map[string]bool{}
	for i := 0; i < len(root.Content); i += 2 {
		key, value := root.Content[i], root.Content[i+1]
		if seen[key.Value] {
			problems = append(problems, fmt.Errorf("line %d: %s: given twice", key.Line, key.Value))
			continue
		}
		seen[key.Value] = true
		items := []*yaml.Node{value}
		switch {
		case value.Kind == yaml.SequenceNode:
			items = value.Content
		case isNull(value) && value.Value != "~": // as if it were not there
			items = nil
		}
		v := configValue{name: key.Value, line: key.Line}
		var wrong error
		for _, item := range items {
			wrong = cmp.Or(wrong, checkItem(key.Value, item))
			v.values = append(v.values, item.Value)
		}
		if wrong != nil {
			problems = append(problems, wrong)
			continue
		}
		all = append(all, v)
	}
	return all, problems
}

// rootOf returns the options of a file, of which there can be none.
func rootOf(text []byte) (*yaml.Node, []error) {
	var document yaml.Node
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	if err := decoder.Decode(&document); err != nil && !errors.Is(err, io.EOF) {
		return nil, []error{err}
	}
	// Options in another document would be ignored, even those that protect something.
	for {
		var another yaml.Node
		if err := decoder.Decode(&another); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, []error{err}
		}
		if !isEmpty(another) {
			return nil, []error{fmt.Errorf("line %d: a second document begins (---): put all options into one", another.Line)}
		}
	}
	if isEmpty(document) {
		return nil, nil
	}
	if document.Content[0].Kind != yaml.MappingNode {
		return nil, []error{errForm}
	}
	return document.Content[0], nil
}

// checkItem returns what is wrong with the form of a value.
func checkItem(name string, item *yaml.Node) error {
	err := errForm
	switch {
	case item.Kind == yaml.AliasNode:
		err = fmt.Errorf("the anchor *%s: anchors are not supported, write the value", item.Value)
	case item.Kind != yaml.ScalarNode:
	case isNull(item) && item.Value == "~":
		err = errors.New("~ is null in YAML: write the whole path, or leave the line out")
	case isNull(item):
		err = errors.New("an item of the list is empty")
	default:
		err = checkExpanded(item.Value)
	}
	if err == nil {
		return nil
	}
	return fmt.Errorf("line %d: %s: %w", item.Line, name, err)
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

func isEmpty(document yaml.Node) bool {
	return len(document.Content) == 0 || isNull(document.Content[0])
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
