package main

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/report.golden anew")

// tree is a release whose files stand in one file of testdata, each after a line
// "-- NAME --". The first element of a name is the module.
func tree(t *testing.T, version, file string) *release {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	r := &release{version: version, modules: map[string]string{}, requires: map[string]string{}, packages: map[string]*pkg{}}
	for part := range strings.SplitSeq("\n"+string(text), "\n-- ") {
		name, content, ok := strings.Cut(part, " --\n")
		if !ok {
			continue
		}
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content+"\n"), 0o600)); err != nil {
			t.Fatal(err)
		}
		module, _, _ := strings.Cut(name, "/")
		r.modules["k8s.io/"+module] = filepath.Join(dir, module)
	}
	return r
}

// The two trees differ in every section, in each way that the program tells apart.
func TestReport(t *testing.T) {
	before, after := tree(t, "v1.30.0", "old.txt"), tree(t, "v1.31.1", "new.txt")
	before.requires["example.com/named"], after.requires["example.com/named"] = "v1.2.0", "v1.3.0"
	before.requires["example.com/other"], after.requires["example.com/other"] = "v1.2.0", "v1.3.0"
	var all []section
	for _, s := range sections(map[string]string{"example.com/named": "v1.2.0"}) {
		if s.title != "Replaced symbols" { // the fixture has none of them
			all = append(all, s)
		}
	}
	var out strings.Builder
	if err := report(&out, before, after, all); err != nil {
		t.Fatal(err)
	}
	golden := filepath.Join("testdata", "report.golden")
	if *update {
		if err := os.WriteFile(golden, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if got := out.String(); got != string(want) {
		t.Errorf("the report differs from %s (go test -update writes it):\n%s", golden, got)
	}
	if strings.Count(out.String(), "No change.") != 0 {
		t.Error("a section has no change: the fixture has one for each")
	}
}

// When upstream moves what a section reads, the report says so instead of finding nothing.
func TestReportFailsWhereItFindsNothing(t *testing.T) {
	before, after := tree(t, "v1.30.0", "old.txt"), tree(t, "v1.31.1", "new.txt")
	for module := range after.modules {
		after.modules[module] = t.TempDir()
	}
	for _, s := range sections(nil) {
		var out strings.Builder
		if err := report(&out, before, after, []section{s}); err == nil {
			t.Errorf("%s: no error, but\n%s", s.title, out.String())
		}
	}
}
