package main

import (
	"reflect"
	"strings"
	"testing"
)

func TestParsePage(t *testing.T) {
	page := "# Recipes\n\n## Another program's\n```yaml\na: b\n```\n\n## One\n\n```sh\na\nb\n```\n\ntext\n\n```sh\nc\n```\n```text\nd\n```\n"
	got, err := parsePage(page)
	want := []tutorial{{title: "One", blocks: []block{{script: "a\nb"}, {script: "c", want: []string{"d"}}}}}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
	for name, test := range map[string]struct{ page, want string }{
		"no proof":            {"## One\n```sh\na\n```\n", "does not end with a proof"},
		"no recipe":           {"# Recipes\n", "there is no recipe"},
		"no end":              {"## One\n```sh\n", "has no end"},
		"an unknown language": {"## One\n```go\na\n```\n", `a block in "go"`},
		"a proof of nothing":  {"## One\n```text\na\n```\n", `a block in "text"`},
		"an empty proof":      {"## One\n```sh\na\n```\n```text\n```\n", `a block in "text"`},
		"nobody's block":      {"```sh\na\n```\n## One\n", "above the first recipe"},
	} {
		if _, err := parsePage(test.page); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

func TestMissing(t *testing.T) {
	for _, test := range []struct{ want, printed, missing string }{
		{"a  b", "x\na b\ny\n", ""},
		{"a …", "a b c\n", ""},
		{"a", "a b\n", "a"},
		{"a\nb", "a\nx\nb\n", ""},
		{"a\nb", "b\na\n", "b"},
		{"a\na", "a\n", "a"},
		{"a.c", "abc\n", "a.c"},
	} {
		if got := (block{want: strings.Split(test.want, "\n")}).missing(test.printed); got != test.missing {
			t.Errorf("%q in %q: got %q, want %q", test.want, test.printed, got, test.missing)
		}
	}
}
