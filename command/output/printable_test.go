package output

import "testing"

func TestPrintable(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                    "",
		"/var/lib/my karve ü": "/var/lib/my karve ü",
		"v1\x1b]0;owned\a":    `"v1\x1b]0;owned\a"`,
		"a\nb":                `"a\nb"`,
		"a\u009b2J":           `"a\u009b2J"`,
		"a\x9b2J":             `"a\x9b2J"`,
		"a\u202eb":            `"a\u202eb"`,
	} {
		if got := Printable(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
}
