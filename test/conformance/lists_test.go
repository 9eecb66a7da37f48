package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// The lists name every Conformance test of the Kubernetes version in go.mod, once.
func TestListsAreUpstreams(t *testing.T) {
	upstream, err := upstreamTests(t.Context(), ".")
	if err != nil {
		t.Fatal(err)
	}
	if len(upstream) < 400 {
		t.Fatalf("upstream has %d Conformance tests; v1.37 has more than 400", len(upstream))
	}
	if err := readLists("lists", upstream); err != nil {
		t.Error(err)
	}
	if _, err := readFailing("lists", upstream); err != nil {
		t.Error(err)
	}
	for _, l := range lists {
		if len(l.tests) == 0 {
			t.Errorf("the list %s is empty", l.Name)
		}
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
			err := readLists(dir, []string{"a", "b", "c"})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestSummarise(t *testing.T) {
	for state := types.SpecStateSkipped; state <= types.SpecStateTimedout; state <<= 1 {
		wrong := state != types.SpecStatePassed && state != types.SpecStateSkipped
		results := []result{{name: "one", state: types.SpecStatePassed}, {name: "two", state: state, message: "broken"}}
		var printed strings.Builder
		if err := summarise(&printed, "list", results, nil, time.Second); (err != nil) != wrong || strings.Contains(printed.String(), "broken") != wrong {
			t.Errorf("a test that %s: got %v, printed %q", state, err, &printed)
		}
		known := map[string]string{"two": "reason"}
		if err := summarise(&printed, "list", results, known, time.Second); (err != nil) != (state == types.SpecStatePassed) {
			t.Errorf("a test that is known to fail, and %s: got %v", state, err)
		}
	}
	tests := []string{"one", "two"}
	if err := whole([]result{{name: "one"}, {name: "two"}}, tests); err != nil {
		t.Error(err)
	}
	if whole([]result{{name: "one"}}, tests) == nil || whole([]result{{name: "one"}, {name: "two"}, {name: "two"}}, tests) == nil {
		t.Error("a report in which a test is missing, or is twice, is found to be whole")
	}
}
