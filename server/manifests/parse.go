package manifests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// object is an object of a file.
type object struct {
	*unstructured.Unstructured
	where string // its place in the file; empty for an object of a kustomization
}

// parse returns the objects of a file. The error names each document that is wrong; those without content do
// not count.
func parse(text []byte, isJSON bool) ([]object, error) {
	var objects []object
	var problems []error
	next := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))).Read
	if isJSON {
		decoder := json.NewDecoder(bytes.NewReader(text))
		next = func() (value []byte, err error) {
			err = decoder.Decode((*json.RawMessage)(&value))
			return value, err
		}
	}
	for n := 1; ; {
		document, err := next()
		if errors.Is(err, io.EOF) {
			return objects, errors.Join(problems...)
		}
		where := fmt.Sprintf("document %d", n)
		if _, ok := errors.AsType[yamlutil.YAMLSyntaxError](err); ok { // its text has what follows, which may be secret
			err = errors.New("only a comment may follow --- in its line")
		}
		if err != nil { // where the next one begins is not known
			return objects, errors.Join(append(problems, fmt.Errorf("%s: %w", where, err))...)
		}
		found, err := objectsOf(document)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", where, err))
		}
		for _, o := range found {
			objects = append(objects, object{o, where})
		}
		if found != nil || err != nil {
			n++
		}
	}
}

// objectsOf returns the object of a document, or those of a List; nil if it has no content.
func objectsOf(document []byte) ([]*unstructured.Unstructured, error) {
	if _, rest, found := bytes.Cut(document, []byte("\n...")); found {
		for line := range bytes.Lines(rest) {
			if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
				return nil, errors.New("separate documents by ---: what follows ... would be lost")
			}
		}
	}
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, err
	}
	var value any
	if err := utiljson.Unmarshal(text, &value); err != nil || value == nil {
		return nil, err
	}
	content, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("this is no object")
	}
	whole := &unstructured.Unstructured{Object: content}
	items := []*unstructured.Unstructured{whole}
	if whole.IsList() && strings.HasSuffix(whole.GetKind(), "List") {
		items = items[:0]
		list, err := whole.ToList()
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			items = append(items, &list.Items[i])
		}
	}
	for _, o := range items {
		if err := complete(o); err != nil {
			return nil, err
		}
	}
	return items, nil
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
