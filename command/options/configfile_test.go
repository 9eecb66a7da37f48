package options

import (
	"strings"
	"testing"
)

func TestConfigOfSeveralDocuments(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                            "",
		"---\n":                       "",
		"---\na: b\n":                 "",
		"# only\n---\na: b\n":         "",
		"a: b\n...\n":                 "",
		"a: b\n--- # end\n":           "",
		"a: b\n---\nc: d\n":           "line 2: a second document",
		"---\n---\nc: d\n":            "line 2: a second document",
		"a: b\n---\n---\nc: d\n":      "a second document",
		"a: b\n...\n---\nanonymous\n": "a second document",
		"a: b\n---\nc: [\n":           "yaml: ",
	} {
		_, err := parseConfig([]byte(text))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
}
