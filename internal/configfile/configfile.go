// Package configfile reads the configuration file of a server, and changes single options in it. The file is YAML: names of
// options, each with a value or a list of values.
package configfile

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"regexp"

	"go.yaml.in/yaml/v3"
)

// Option is one entry of the file, with values as text: 0640 is a mode, not the number 416.
type Option struct {
	Name   string
	Values []string
	Line   int

	comment string // behind the name, or behind its only value
}

// Options are the entries of a file; each name is in one of them.
type Options []Option

// All are the values of an option.
func (o Options) All(name string) []string {
	for _, option := range o {
		if option.Name == name {
			return option.Values
		}
	}
	return nil
}

// Last is the value that counts of an option that takes one.
func (o Options) Last(name string) string {
	if values := o.All(name); len(values) > 0 {
		return values[len(values)-1]
	}
	return ""
}

var errForm = errors.New("want name: value, or name: and a list of values")

// Parse returns the options that can be read, and a problem for each of the others.
func Parse(text []byte) (all Options, problems []error) {
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
		o := Option{Name: key.Value, Line: key.Line, comment: cmp.Or(key.LineComment, value.LineComment)}
		var wrong error
		for _, item := range items {
			wrong = cmp.Or(wrong, checkItem(key.Value, item))
			o.Values = append(o.Values, item.Value)
		}
		if wrong != nil {
			problems = append(problems, wrong)
			continue
		}
		all = append(all, o)
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
		err = CheckExpanded(item.Value)
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

// unexpanded is how a path begins that a shell would have expanded.
var unexpanded = regexp.MustCompile(`^(~/|\$\{?[A-Za-z_])`)

// CheckExpanded refuses a path that would be made, with that name, below the working directory.
func CheckExpanded(value string) error {
	if !unexpanded.MatchString(value) {
		return nil
	}
	return fmt.Errorf("%q: no shell has expanded %s: write the whole path", value, value[:1])
}
