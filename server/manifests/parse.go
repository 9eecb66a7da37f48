package manifests

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"sigs.k8s.io/yaml"
)

// object is an object of a file.
type object struct {
	*unstructured.Unstructured
	where string // its place in the file; empty for an object of a kustomization
}

// document is a part of a file. Its line is that of its first content, and begins is the line before its text.
type document struct {
	text         []byte
	begins, line int
}

// parse returns the objects of a file. The error names each document that is wrong, with its line.
func parse(text []byte, isJSON bool) ([]object, error) {
	all, err := split(text), error(nil)
	if isJSON {
		all, err = splitJSON(text)
	}
	problems := []error{err}
	var objects []object
	for i, d := range all {
		found, line, err := d.objects()
		if err != nil {
			problems = append(problems, fmt.Errorf("document %d, line %d: %w", i+1, line, err))
		}
		for _, o := range found {
			objects = append(objects, object{o, fmt.Sprintf("document %d, line %d", i+1, line)})
		}
	}
	return objects, errors.Join(problems...)
}

// split returns the documents of a YAML file that have content.
func split(text []byte) []document {
	var all []document
	now, n := document{}, 0
	end := func() {
		if now.line > 0 {
			all = append(all, now)
		}
		now = document{begins: n}
	}
	for line := range bytes.Lines(text) {
		mark := bytes.HasPrefix(line, []byte("---")) || bytes.HasPrefix(line, []byte("..."))
		if mark && (len(line) == 3 || strings.ContainsAny(string(line[3:4]), " \t\r\n")) {
			end()
			line = line[3:]
		}
		n++
		if content := bytes.TrimSpace(line); now.line == 0 && len(content) > 0 && content[0] != '#' {
			now.line = n
		}
		now.text = append(now.text, line...)
	}
	end()
	return all
}

// splitJSON returns the values of a JSON file up to its first error.
func splitJSON(text []byte) ([]document, error) {
	line := func(offset int64) int { return 1 + bytes.Count(text[:min(int(offset), len(text))], []byte("\n")) }
	var all []document
	decoder := json.NewDecoder(bytes.NewReader(text))
	for {
		var value json.RawMessage
		err := decoder.Decode(&value)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			at := int64(len(text))
			var syntax *json.SyntaxError
			if errors.As(err, &syntax) {
				at = syntax.Offset
			}
			return all, fmt.Errorf("document %d, line %d: %w", len(all)+1, line(at), err)
		}
		all = append(all, document{text: value, line: line(decoder.InputOffset() - int64(len(value)))})
	}
}

var yamlLine = regexp.MustCompile(`(?s)line (\d+): (.*)`)

// objects returns the object of a document, or those of a List, and the line of the document or of its error.
func (d document) objects() ([]*unstructured.Unstructured, int, error) {
	text, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		if m := yamlLine.FindStringSubmatch(err.Error()); m != nil {
			n, _ := strconv.Atoi(m[1])
			return nil, d.begins + n, errors.New(strings.TrimSpace(m[2]))
		}
		return nil, d.line, err
	}
	var value any
	if err := utiljson.Unmarshal(text, &value); err != nil || value == nil {
		return nil, d.line, err
	}
	content, ok := value.(map[string]any)
	if !ok {
		return nil, d.line, errors.New("this is no object")
	}
	whole := &unstructured.Unstructured{Object: content}
	items := []*unstructured.Unstructured{whole}
	if whole.IsList() && strings.HasSuffix(whole.GetKind(), "List") {
		items = nil
		list, err := whole.ToList()
		if err != nil {
			return nil, d.line, err
		}
		for i := range list.Items {
			items = append(items, &list.Items[i])
		}
	}
	for _, o := range items {
		if err := complete(o); err != nil {
			return nil, d.line, err
		}
	}
	return items, d.line, nil
}

// complete reports what an object is missing.
func complete(o *unstructured.Unstructured) error {
	for _, field := range [][]string{{"apiVersion"}, {"kind"}, {"metadata", "name"}} {
		if value, found, err := unstructured.NestedString(o.Object, field...); err != nil || !found || value == "" {
			return fmt.Errorf("%s is missing, or no text", strings.Join(field, "."))
		}
	}
	if _, _, err := unstructured.NestedString(o.Object, "metadata", "namespace"); err != nil {
		return errors.New("metadata.namespace is no text")
	}
	return nil
}
