package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The lists name every Conformance test of the Kubernetes version in go.mod, once.
func TestListsAreUpstreams(t *testing.T) {
	_, source, err := kubernetes(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	upstream, err := conformanceTests(source)
	if err != nil {
		t.Fatal(err)
	}
	if len(upstream) < 400 {
		t.Fatalf("upstream has %d Conformance tests; v1.37 has more than 400", len(upstream))
	}
	excluded, err := compareLists("lists", upstream)
	if err != nil {
		t.Error(err)
	}
	if _, err := readFailing("lists", upstream); err != nil {
		t.Error(err)
	}
	total := 0
	for _, e := range excluded {
		total += e.Tests
	}
	for _, l := range lists {
		if len(l.tests) == 0 {
			t.Errorf("the list %s is empty", l.Name)
		}
		total += len(l.tests)
	}
	if total != len(upstream) {
		t.Errorf("the lists have %d tests, upstream %d", total, len(upstream))
	}
}

func TestListsThatHaveParted(t *testing.T) {
	for _, test := range []struct {
		name                          string
		nodeless, simulated, excluded string
		want                          string // of the error; "": none
	}{
		{"as they should be", "a\n", "b\n", "# no network\nc\n", ""},
		{"a test is gone", "a\n", "b\n", "# no network\nc\nd\n", "upstream has no Conformance test d"},
		{"a test is new", "a\n", "", "# no network\nc\n", "Conformance test b is in no list"},
		{"in two lists", "a\n", "a\nb\n", "# no network\nc\n", "a is also in "},
		{"twice in a list", "a\na\n", "b\n", "# no network\nc\n", "a is also in "},
		{"without a reason", "a\n", "b\n", "c\n", "c is below no line"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range map[string]string{"nodeless": test.nodeless, "simulated": test.simulated, "excluded": test.excluded} {
				if err := os.WriteFile(filepath.Join(dir, name+".txt"), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			_, err := compareLists(dir, []string{"a", "b", "c"})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestVerdict(t *testing.T) {
	for state, fails := range map[string]bool{"passed": false, "skipped": false, "failed": true, "timedout": true, "panicked": true, "interrupted": true, "aborted": true} {
		r := report{}
		r.add(lists[0], []result{{Name: "[sig-auth] one", State: "passed"}, {Name: "[sig-auth] two", State: state}}, 0)
		if err := r.verdict(); (err != nil) != fails {
			t.Errorf("a test that %s: got %v", state, err)
		}
	}
	tests := []string{"one", "two"}
	if err := whole([]result{{Name: "one"}, {Name: "two"}}, tests); err != nil {
		t.Error(err)
	}
	if whole([]result{{Name: "one"}}, tests) == nil || whole([]result{{Name: "one"}, {Name: "two"}, {Name: "two"}}, tests) == nil {
		t.Error("a report in which a test is missing, or is twice, is found to be whole")
	}
}
