package deviations_test

import (
	"errors"
	"flag"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/deviations/mirrors"
)

// root is the repository's.
const root = "../.."

// sources calls see with every Go file of the repository.
func sources(t *testing.T, see func(path, text string)) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == "build" || entry.Name() == "testdata" || path != root && strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".."):
			return filepath.SkipDir
		case !strings.HasSuffix(path, ".go"):
			return nil
		}
		text, err := os.ReadFile(path)
		see(path, string(text))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// Every row says what it is and what it gains, its code and its comparison tests exist, and
// something asks whether it is on.
func TestTableIsComplete(t *testing.T) {
	tests, asked := map[string]bool{}, map[string]bool{}
	function, question := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`), regexp.MustCompile(`\b(?:On\(|of: )deviations\.(\w+)\b`)
	sources(t, func(path, text string) {
		if strings.HasSuffix(path, "_test.go") {
			for _, m := range function.FindAllStringSubmatch(text, -1) {
				tests[m[1]] = true
			}
			return
		}
		for _, m := range question.FindAllStringSubmatch(text, -1) {
			asked[strings.ToLower(m[1])] = true
		}
	})
	if names := deviations.Names(); !slices.IsSorted(names) || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("the names are not sorted, or one is there twice: %v", names)
	}
	for _, d := range deviations.Table {
		if d.Instead == "" || d.Gain == "" {
			t.Errorf("%s: Instead or Gain is missing", d.Name)
		}
		if !slices.ContainsFunc(mirrors.All, func(m mirrors.Mirror) bool { return m.Ours == d.Code() || strings.HasPrefix(m.Ours, d.Code()+"/") }) {
			t.Errorf("%s: no function of upstream's has a hash: an upgrade does not show that what it replaces has changed", d.Name)
		}
		if _, err := os.Stat(filepath.Join(root, d.Code())); err != nil {
			t.Errorf("%s: its code is not where the table has it: %v", d.Name, err)
		}
		if len(d.Tests) == 0 {
			t.Errorf("%s: no test compares it with upstream", d.Name)
		}
		for _, name := range d.Tests {
			if !tests[name] {
				t.Errorf("%s: there is no test %s", d.Name, name)
			}
		}
		if !asked[d.Name] {
			t.Errorf("%s: nothing asks whether it is on: --upstream=%s does nothing", d.Name, d.Name)
		}
	}
	for name := range asked {
		if !slices.Contains(deviations.Names(), name) {
			t.Errorf("%s: it has a switch, and no row in the table", name)
		}
	}
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		names, off []string
	}{
		{nil, nil},
		{[]string{"routes"}, []string{"routes"}},
		{[]string{"routes", "openapi", "routes"}, []string{"routes", "openapi"}},
		{[]string{deviations.All}, deviations.Names()},
	} {
		switches, err := deviations.Parse(c.names)
		if err != nil {
			t.Errorf("%v: %v", c.names, err)
		}
		for _, d := range deviations.Table {
			if on := switches.On(d); on == slices.Contains(c.off, d.Name) {
				t.Errorf("%v: %s is on: %v", c.names, d.Name, on)
			}
		}
	}
	_, err := deviations.Parse([]string{"route", "openapi", "none"})
	if !errors.Is(err, deviations.ErrUnknown) {
		t.Fatalf("got %v, want %v", err, deviations.ErrUnknown)
	}
	for _, want := range append(deviations.Names(), `"route"`, `"none"`) {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not name %s: %v", want, err)
		}
	}
}

var update = flag.Bool("update", false, "write the table into docs/deviations.md")

// docs/deviations.md has what Table has.
func TestDocumentIsTheTable(t *testing.T) {
	file := filepath.Join(root, "docs", "deviations.md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var want strings.Builder
	if err := deviations.Document(&want); err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- from here: go test ./server/deviations -update -->\n", "<!-- to here -->\n"
	before, rest, begins := strings.Cut(string(text), begin)
	got, after, ends := strings.Cut(rest, end)
	switch {
	case !begins || !ends:
		t.Fatalf("%s has no lines %q and %q", file, begin, end)
	case *update:
		if err := os.WriteFile(file, []byte(before+begin+want.String()+end+after), 0o644); err != nil {
			t.Fatal(err)
		}
	case got != want.String():
		t.Error("docs/deviations.md is not what the table says: go test ./server/deviations -update")
	}
}
