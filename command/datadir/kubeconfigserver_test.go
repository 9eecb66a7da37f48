package datadir

import (
	"strings"
	"testing"
)

func TestParseServer(t *testing.T) {
	for text, want := range map[string]string{
		"board.example":                "https://board.example:7443",
		"board.example:443":            "https://board.example:443",
		"192.0.2.7":                    "https://192.0.2.7:7443",
		"192.0.2.7:6443":               "https://192.0.2.7:6443",
		"2001:db8::7":                  "https://[2001:db8::7]:7443",
		"[2001:db8::7]":                "https://[2001:db8::7]:7443",
		"[2001:db8::7]:6443":           "https://[2001:db8::7]:6443",
		"https://board.example":        "https://board.example",
		"https://board.example:6443":   "https://board.example:6443",
		"https://proxy.example/karve":  "https://proxy.example/karve",
		"http://board.example":         "",
		"board.example:":               "",
		"board.example:0":              "",
		"board.example:70000":          "",
		"board.example:port":           "",
		"board.example/path":           "",
		"https://user:pass@board":      "",
		"https://board.example?x=y":    "",
		"https://":                     "",
		"not good":                     "",
		"300.1.1.1":                    "",
		"fe80::1%eth0":                 "",
		"https://board.example:6443#x": "",
	} {
		got, err := parseServer(text, "7443")
		if want == "" {
			if err == nil || !strings.Contains(err.Error(), "--server") {
				t.Errorf("%s: got %v, %v, want an error that names --server", text, got, err)
			}
			continue
		}
		if err != nil || got.String() != want {
			t.Errorf("%s: got %v, %v, want %s", text, got, err, want)
		}
	}
}
