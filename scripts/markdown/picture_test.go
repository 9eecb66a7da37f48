package markdown_test

import (
	"html"
	"os"
	"regexp"
	"strings"
	"testing"
)

// The picture of a terminal in README.md, docs/images/terminal.svg, shows the command below "Try it" and what it prints,
// which scripts/install-test runs. Each line of it is an element <text>, and its delay is the time after which it was printed.
func TestThePictureShowsWhatREADMEHas(t *testing.T) {
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	svg, err := os.ReadFile("../../docs/images/terminal.svg")
	if err != nil {
		t.Fatal(err)
	}
	example := regexp.MustCompile("(?s)\n## Try it\n.*?\nsh install.sh binary .\n(.*?)```\n```text\n(.*?)```\n").FindStringSubmatch(string(page))
	if example == nil {
		t.Fatal(`README.md: want a block in sh and one of text below "Try it"`)
	}
	want := "$ " + strings.TrimSuffix(strings.ReplaceAll(example[1], "\n", "\n  "), "  ") + example[2]
	shown := ""
	for _, text := range regexp.MustCompile(`(?m)^<text [^>]*>(.*)</text>$`).FindAllStringSubmatch(string(svg), -1) {
		shown += html.UnescapeString(text[1]) + "\n"
	}
	shown, note, _ := strings.Cut(shown, "# everything is gone again after ")
	ages := regexp.MustCompile(`\b[0-9]+s\b`)
	if shown, want = ages.ReplaceAllString(shown, "…"), ages.ReplaceAllString(want, "…"); shown != want || note == "" {
		t.Errorf("docs/images/terminal.svg shows\n%s\nwant what README.md has\n%s", shown, want)
	}
}
