package markdown_test

import (
	"os"
	"strings"
	"testing"
)

// Every script has a line in scripts/README.md.
func TestScriptsAreDescribed(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir("..")
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if name != "README.md" && !strings.HasSuffix(name, "_test.go") && !strings.Contains(string(readme), "`"+name+"`") && !strings.Contains(string(readme), "/"+name+"`") && !strings.Contains(string(readme), "`"+name+"/`") {
			t.Errorf("scripts/README.md has no line for %s", name)
		}
	}
}
