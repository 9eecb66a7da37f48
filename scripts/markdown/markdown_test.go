package markdown_test

import (
	"os"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/karve-k8s/karve/scripts/markdown"
)

// TestDocumentsNameWhatExists fails when a document links to a file or a heading that is
// not there, or names a file of the repository or a test that is not there.
func TestDocumentsNameWhatExists(t *testing.T) {
	mistakes, err := markdown.Check(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for _, mistake := range mistakes {
		t.Error(mistake)
	}
}

// A newcomer reads the root listing first, and CONTRIBUTING.md to learn what each name is.
func TestContributingNamesEveryDirectory(t *testing.T) {
	text, err := os.ReadFile("../../CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("../..")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if !entry.IsDir() || strings.HasPrefix(name, ".") || name == "build" { // build is not in the repository
			continue
		}
		if !strings.Contains(string(text), "| `"+name+"/`") {
			t.Errorf("CONTRIBUTING.md has no line for %s/", name)
		}
	}
}

func TestCheckFindsMistakes(t *testing.T) {
	for name, test := range map[string]struct {
		text string
		want string // empty: no mistake
	}{
		"a link to a file":                  {"[a](docs/a.md)", ""},
		"a link to a missing file":          {"[a](docs/b.md)", "README.md:1: docs/b.md: there is no such file"},
		"a link to a heading":               {"[a](docs/a.md#start--stop-in-two-words)", ""},
		"a link to a second heading":        {"[a](docs/a.md#again-1)", ""},
		"a link to a missing heading":       {"[a](docs/a.md#two)", "there is no such heading"},
		"a link to a heading of its own":    {"# Here\n\n[a](#here)", ""},
		"a link to no heading of its own":   {"# Here\n\n[a](#there)", "README.md:3: #there: there is no such heading"},
		"a link to the net":                 {"[a](https://example.com/b.md)", ""},
		"an image":                          {"![a](docs/a.svg)", "there is no such file"},
		"a picture for dark mode":           {`<source srcset="docs/dark.svg">`, "there is no such file"},
		"a link in a code block":            {"```\n[a](docs/b.md)\n```", ""},
		"a file":                            {"`server/run.go` and `run_test.go`", "`run_test.go`: there is no such file"},
		"a missing file":                    {"`server/stop.go`", "`server/stop.go`: there is no such file"},
		"a missing directory":               {"`server/stop/`", "`server/stop/`: there is no such file"},
		"a file that a script makes":        {"`build/report`", ""},
		"a path of a user's machine":        {"`/etc/server/x` and `etc/x`", ""},
		"an import path":                    {"`example.com/server/stop`", ""},
		"a test":                            {"TestRun shows it", ""},
		"several tests":                     {"TestR shows it", ""},
		"a missing test":                    {"TestStop shows it", "TestStop: there is no such test"},
		"a missing benchmark in code block": {"    go test -bench BenchmarkStop", "BenchmarkStop: there is no such test"},
	} {
		t.Run(name, func(t *testing.T) {
			mistakes, err := markdown.Check(fstest.MapFS{
				"README.md":          {Data: []byte(test.text)},
				"build/karve":        {},
				"docs/a.md":          {Data: []byte("# Start & stop, in `two` words\n\n## Again\n\n## Again\n")},
				"server/run.go":      {Data: []byte("package server")},
				"server/run_test.go": {Data: []byte("package server\n\nfunc TestRun(t *testing.T) {}\n")},
			})
			if err != nil {
				t.Fatal(err)
			}
			if test.want == "" && len(mistakes) > 0 || test.want != "" && !slices.ContainsFunc(mistakes, func(mistake string) bool { return strings.Contains(mistake, test.want) }) {
				t.Errorf("got %q, want %q", mistakes, test.want)
			}
		})
	}
}
