package manifests

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	yamlutil "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"
)

// object is an object of a file.
type object struct {
	*unstructured.Unstructured
	where string // its place in the file
}

// refusal refuses a document alone. kubectl goes on with the others as well.
type refusal struct{ error }

// plain returns a text in UTF-8 without a byte order mark.
func plain(text []byte) ([]byte, error) {
	if bytes.HasPrefix(text, []byte("\xfe\xff")) || bytes.HasPrefix(text, []byte("\xff\xfe")) {
		return nil, errors.New("it is UTF-16, as PowerShell writes it: save it as UTF-8")
	}
	return bytes.TrimPrefix(text, []byte("\ufeff")), nil
}

// values reads JSON values behind each other.
func values(text []byte) func() ([]byte, error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	return func() (value []byte, err error) {
		err = decoder.Decode((*json.RawMessage)(&value))
		return value, err
	}
}

// onlyValues reports whether a text is JSON objects behind each other, as kubectl reads it, too. With --- between them it is YAML.
func onlyValues(text []byte) bool {
	next := values(text)
	for {
		value, err := next()
		if err != nil {
			return errors.Is(err, io.EOF)
		}
		if value[0] != '{' {
			return false
		}
	}
}

// parse returns the objects of a file. The error names each document that is wrong; those without content do
// not count. There are no objects if one of the errors is no [refusal]: the file may be half written.
func parse(text []byte, isJSON bool) ([]object, error) {
	var objects []object
	var problems []error
	unreadable := false
	text, err := plain(text)
	if err != nil {
		return nil, err
	}
	next := yamlutil.NewYAMLReader(bufio.NewReader(bytes.NewReader(text))).Read
	if isJSON || onlyValues(text) {
		next = values(text)
	}
	for n := 1; ; {
		document, err := next()
		if errors.Is(err, io.EOF) {
			if unreadable {
				objects = nil
			}
			return objects, errors.Join(problems...)
		}
		where := fmt.Sprintf("document %d", n)
		if _, ok := errors.AsType[yamlutil.YAMLSyntaxError](err); ok { // its text has what follows, which may be secret
			err = errors.New("only a comment may follow --- in its line")
		} else if err != nil {
			err = unquoted(err)
		}
		if err != nil { // where the next one begins is not known
			return nil, errors.Join(append(problems, fmt.Errorf("%s: %w", where, err))...)
		}
		found, err := objectsOf(document)
		if err != nil {
			problems = append(problems, fmt.Errorf("%s: %w", where, err))
			_, alone := errors.AsType[refusal](err)
			unreadable = unreadable || !alone
		}
		for _, o := range found {
			objects = append(objects, object{o, where})
		}
		if found != nil || err != nil {
			n++
		}
	}
}

// objectsOf returns the object of a document, or those of a List or a list of one kind; nil if it has no content.
func objectsOf(document []byte) ([]*unstructured.Unstructured, error) {
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, unquoted(err)
	}
	if err := alone(document); err != nil {
		return nil, err
	}
	var value any
	if err := utiljson.Unmarshal(text, &value); err != nil || value == nil {
		return nil, unquoted(err)
	}
	content, ok := value.(map[string]any)
	if !ok {
		return nil, errors.New("this is no object")
	}
	whole := &unstructured.Unstructured{Object: content}
	items := []*unstructured.Unstructured{whole}
	if whole.IsList() && strings.HasSuffix(whole.GetKind(), "List") {
		items = items[:0]
		for i, item := range content["items"].([]any) {
			content, ok := item.(map[string]any)
			if !ok {
				return nil, refusal{fmt.Errorf("items[%d] is no object", i)}
			}
			o := &unstructured.Unstructured{Object: content}
			if o.GetKind() == "" && o.GetAPIVersion() == "" { // the API server leaves them out
				o.SetKind(strings.TrimSuffix(whole.GetKind(), "List"))
				o.SetAPIVersion(whole.GetAPIVersion())
			}
			items = append(items, o)
		}
	}
	named := []*unstructured.Unstructured{}
	var refused []string
	for _, o := range items {
		switch err := complete(o); {
		case err != nil:
			return nil, err
		case o.GetName() != "":
			named = append(named, o)
		case o.GetGenerateName() != "":
			refused = append(refused, o.GetKind()+": metadata.generateName is for objects that are created anew each time: give it a metadata.name")
		default:
			refused = append(refused, o.GetKind()+": metadata.name is missing")
		}
	}
	if len(refused) > 0 {
		err = refusal{errors.New(strings.Join(refused, "; "))}
	}
	return named, err
}

// errLost refuses what parsers read only the first document of.
var errLost = errors.New("separate documents by ---: what follows the first one would be lost")

// alone returns errLost unless a document is the only one in its text.
func alone(document []byte) error {
	decoder := yamlv3.NewDecoder(bytes.NewReader(document))
	var content yamlv3.Node
	if err := decoder.Decode(&content); err != nil && !errors.Is(err, io.EOF) {
		return unquoted(err)
	}
	if err := decoder.Decode(&content); !errors.Is(err, io.EOF) {
		return errLost
	}
	return nil
}

// complete reports what an object is missing, apart from its name.
func complete(o *unstructured.Unstructured) error {
	for _, field := range []string{"apiVersion", "kind"} {
		if value, _ := o.Object[field].(string); value == "" {
			return fmt.Errorf("%s is missing, or no text", field)
		}
	}
	metadata, _ := o.Object["metadata"].(map[string]any)
	for _, field := range []string{"name", "generateName", "namespace"} {
		if value, found := metadata[field]; found && value == nil {
			delete(metadata, field) // null is as absent
		} else if _, ok := value.(string); found && !ok {
			return fmt.Errorf("metadata.%s is no text", field)
		}
	}
	return nil
}
