package markdown_test

import (
	"os"
	"strings"
	"testing"
)

// TestDocumentsNameWhatExists fails when a document links to a file or a heading that is
// not there, or names a file of the repository or a test that is not there.
func TestDocumentsNameWhatExists(t *testing.T) {
	mistakes, err := check(os.DirFS("../.."))
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
