// Package scripts has only a test, of what the scripts say about themselves.
package scripts

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// Every script is in README.md, and its head comment says how it is called, what it needs
// and how long it takes.
func TestScriptsAreDescribed(t *testing.T) {
	readme, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	head := regexp.MustCompile(`^#!/usr/bin/env bash\n((?:#.*\n)+)`)
	takes := regexp.MustCompile(`(?i)\btakes?\b`)
	scripts := 0
	for _, entry := range entries {
		name := entry.Name()
		if entry.IsDir() {
			if !strings.Contains(string(readme), name+"/`") && !strings.Contains(string(readme), "./scripts/"+name+"`") {
				t.Errorf("README.md does not mention %s/", name)
			}
			continue
		}
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		comment := head.FindStringSubmatch(string(text))
		if comment == nil {
			continue // no script
		}
		scripts++
		if !strings.Contains(string(readme), "| `"+name+"` |") {
			t.Errorf("README.md has no line for %s", name)
		}
		for want, ok := range map[string]bool{
			"how it is called (\"#\tscripts/" + name + "\")": strings.Contains(comment[1], "scripts/"+name) && strings.Contains(comment[1], "\n#\t"),
			"what it needs (\"Needs …\")":                    strings.Contains(comment[1], "Needs "),
			"how long it takes (\"takes …\")":                takes.MatchString(comment[1]),
		} {
			if !ok {
				t.Errorf("the head comment of %s does not say %s", name, want)
			}
		}
	}
	if scripts < 10 {
		t.Errorf("found %d scripts: the test looks at the wrong place", scripts)
	}
}
