package markdown_test

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestImages checks what a reader of a document depends on: an image is XML, has colours
// for dark mode, has a title for readers who do not see it, and loads nothing.
func TestImages(t *testing.T) {
	images, err := filepath.Glob("../../docs/images/*.svg")
	if err != nil || len(images) == 0 {
		t.Fatalf("there are no images: %v", err)
	}
	for _, name := range images {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, problem := range imageProblems(string(text)) {
			t.Errorf("%s: %s", filepath.Base(name), problem)
		}
	}
}

func TestImageProblemsAreFound(t *testing.T) {
	const good = `<svg xmlns="http://www.w3.org/2000/svg"><title>x</title><style>@media (prefers-color-scheme: dark) { }</style><path marker-end="url(#head)"/></svg>`
	if problems := imageProblems(good); len(problems) > 0 {
		t.Errorf("got %q, want none", problems)
	}
	for what, text := range map[string]string{
		"not XML":               good + "<svg>",
		"no colours for dark":   strings.Replace(good, "dark", "light", 1),
		"no title":              strings.Replace(good, "title", "desc", 2),
		"loads url(font.woff)":  strings.Replace(good, "{ }", "{ src: url(font.woff) }", 1),
		`loads href="http://x"`: strings.Replace(good, "<path", `<image href="http://x"/><path`, 1),
	} {
		if problems := strings.Join(imageProblems(text), "; "); !strings.Contains(problems, what) {
			t.Errorf("got %q, want %q", problems, what)
		}
	}
}

var loads = regexp.MustCompile(`url\([^#)][^)]*\)|href="[^#"][^"]*"|@import[^;]*`)

func imageProblems(text string) (problems []string) {
	for decoder := xml.NewDecoder(strings.NewReader(text)); ; {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			problems = append(problems, "it is not XML: "+err.Error())
			break
		}
	}
	if !strings.Contains(text, "prefers-color-scheme: dark") {
		problems = append(problems, "it has no colours for dark mode")
	}
	if !strings.Contains(text, "<title") {
		problems = append(problems, "it has no title")
	}
	for _, what := range loads.FindAllString(text, -1) {
		problems = append(problems, "it loads "+what)
	}
	return problems
}
