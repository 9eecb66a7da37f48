package configfile

import (
	"strings"
	"testing"
)

// What a user has written stays, to the byte, and no value goes to another option.
func TestSetChangesOneOption(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ text, values, want string }{
		"of an empty file":           {"", "a", "x: 'a'\n"},
		"a new one, no line break":   {"# c\na: 1 # d", "it's", "# c\na: 1 # d\nx: 'it''s'\n"},
		"in its place":               {"a: 1\n\n# x\nx: 1 # why\n\n# b\nb: 2\n", "a", "a: 1\n\n# x\nx: 'a' # why\n\n# b\nb: 2\n"},
		"a list with comments":       {"a:\n- 1\nx: # names\n# one\n- a\n# two\n- b\n  # behind\n# b\nb: 2\n", "c d", "a:\n- 1\nx: # names\n- 'c'\n- 'd'\n  # behind\n# b\nb: 2\n"},
		"without a list":             {"a:\n- 1\n\"x\":\n    - a\n\n# two\n    - b\n", "", "a:\n- 1\n"},
		"without the only one":       {"# c\nx: 1", "", "# c\n"},
		"one without a value":        {"x:\nb: 2\n", "", "b: 2\n"},
		"a list in brackets":         {"x: [a, # one\n  b] # names\nb: [1, 2]\n", "c", "x: 'c' # names\nb: [1, 2]\n"},
		"quoted on several lines":    {"x: 'a\n\n  # b' # why\nb: \"\n 2\"\n", "c", "x: 'c' # why\nb: \"\n 2\"\n"},
		"on the next line":           {"x:\n  a\nb: |\n  x: 1\n", "c", "x: 'c'\nb: |\n  x: 1\n"},
		"with carriage returns":      {"x:\r\n- a\r\n# b\r\nb: 2\r\n", "c d", "x:\r\n- 'c'\r\n- 'd'\r\n# b\r\nb: 2\r\n"},
		"below the beginning":        {"\ufeff---\n? x\n: 1\nb: 2\n", "c", "\ufeff---\nx: 'c'\nb: 2\n"},
		"the same, however written":  {"x: [a, 'b'] # names\n", "a b", "x: [a, 'b'] # names\n"},
		"one that is not there":      {"a: 1", "", "a: 1"},
		"given twice":                {"a: 1\nx: 1\nx: 2\n", "c", "line 3: x: given twice"},
		"an anchor":                  {"x: &v 1\nb: *v\n", "c", "line 2: b: the anchor *v"},
		"an anchor without its name": {"x: &v 1\nb: &w 2\n", "c", "x: 'c'\nb: &w 2\n"},
		"two documents":              {"x: 1\n---\nb: 1\n", "c", "a second document"},
		"an empty second one":        {"b: 1\n---\n", "c", "x cannot be changed"},
		"all in braces":              {"{a: 1, x: 2}\n", "c", "x cannot be changed"},
		"indented":                   {"  x: 1\n  b: 2\n", "c", "x cannot be changed"},
		"another kind of line break": {"a: 1\rx: 1\nb: 2\n", "c", "x cannot be changed"},
		"tabs":                       {"x:\n\t- a\n", "c", "yaml: line 2"},
	} {
		got, err := Set([]byte(c.text), "x", strings.Fields(c.values))
		if err != nil && !strings.Contains(err.Error(), c.want) || err == nil && string(got) != c.want {
			t.Errorf("%s: got %q, %v, want %q", name, got, err, c.want)
		}
	}
}
