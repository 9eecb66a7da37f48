package quote

import (
	"strings"
	"testing"
)

func TestQuote(t *testing.T) {
	for text, want := range map[string]string{"": `""`, "a\x1b[2J\nü": `"a\x1b[2J\n\u00fc"`, strings.Repeat("a", 61): `"` + strings.Repeat("a", 60) + `"…`} {
		if got := Text(text); got != want {
			t.Errorf("%q: got %s, want %s", text, got, want)
		}
	}
	for want, texts := range map[string][]string{"": nil, "a; b; c": {"a", "b", "c"}, "a; b; c; and 2 more": {"a", "b", "c", "d", "e"}} {
		if got := First(texts, "; "); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}
