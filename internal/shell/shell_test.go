package shell

import (
	"os/exec"
	"testing"
)

func TestQuoted(t *testing.T) {
	t.Parallel()
	for word, want := range map[string]string{
		"/var/lib/karve": "/var/lib/karve",
		"":               "''",
		"/my data":       "'/my data'",
		"/it's":          `'/it'\''s'`,
		"~/$x`y`\n*":     "'~/$x`y`\n*'",
	} {
		got := Quoted(word)
		if got != want {
			t.Errorf("%q: got %s, want %s", word, got, want)
		}
		if sh, err := exec.LookPath("sh"); err == nil {
			if text, err := exec.Command(sh, "-c", "printf %s "+got).Output(); err != nil || string(text) != word {
				t.Errorf("%s in a shell: got %q (%v), want %q", got, text, err, word)
			}
		}
	}
}
