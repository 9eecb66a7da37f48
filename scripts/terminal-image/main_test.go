package main

import (
	"html"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestThePictureShowsWhatREADMEHas fails when the picture is older than the command or its output in README.md, which
// scripts/install-test runs. `go run ./scripts/terminal-image KARVE` makes a new one.
func TestThePictureShowsWhatREADMEHas(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	command, printed, err := example(string(page))
	if err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, text := range regexp.MustCompile(`(?m)^<text [^>]*>(.*)</text>$`).FindAllStringSubmatch(string(svg), -1) {
		shown = append(shown, html.UnescapeString(text[1]))
	}
	want := append(strings.Split("$ "+strings.ReplaceAll(strings.TrimSuffix(command, "\n"), "\n", "\n  "), "\n"),
		strings.Split(strings.TrimSuffix(printed, "\n"), "\n")...)
	if len(shown) != len(want)+1 {
		t.Fatalf("%s has %d lines, want %d and the time that it took", picture, len(shown), len(want))
	}
	for i := range want {
		if got, want := withoutAges(shown[i]), withoutAges(want[i]); got != want {
			t.Errorf("%s, line %d: got %q, want %q as in README.md", picture, i+1, got, want)
		}
	}
	if !regexp.MustCompile(`^# everything is gone again after [0-9.]+ s$`).MatchString(shown[len(want)]) {
		t.Errorf("%s: got %q as its last line", picture, shown[len(want)])
	}
}

var ages = regexp.MustCompile(`\b[0-9]+s\b`)

func withoutAges(line string) string { return ages.ReplaceAllString(line, "…") }
