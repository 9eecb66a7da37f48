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

func TestSetVariable(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ system, value, want string }{
		{"linux", "/data", "export A=/data"},
		{"linux", "/it's", `export A='/it'\''s'`},
		{"darwin", "/my data", "export A='/my data'"},
		{"windows", `C:\Users\it's`, `$env:A = 'C:\Users\it''s'`},
	} {
		if got := SetVariable(c.system, "A", c.value); got != c.want {
			t.Errorf("%s, %s: got %s, want %s", c.system, c.value, got, c.want)
		}
	}
}
