package markdown_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
)

// docs/conformance.md and README.md repeat how many Conformance tests the lists have. The lists belong to another
// module, whose tests Go would not run again after a change of the document.
func TestConformanceDocumentHasTheListsNumbers(t *testing.T) {
	data, err := os.ReadFile("../../docs/conformance.md")
	if err != nil {
		t.Fatal(err)
	}
	total := 0
	count := func(list string) (tests int) {
		data, err := os.ReadFile("../../test/conformance/lists/" + list + ".txt")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "[") {
				tests++
			}
		}
		total += tests
		return tests
	}
	nodeless, simulated, excluded := count("nodeless"), count("simulated"), count("excluded")
	upstream := total
	failing := count("failing") // of the tests above
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%d of %d pass on two real nodes", upstream-failing, upstream); !strings.Contains(string(readme), want) {
		t.Errorf("README.md does not have %q, which follows from test/conformance/lists", want)
	}
	known, err := os.ReadFile("../../test/conformance/lists/failing.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(known)) {
		if line = strings.TrimSpace(strings.TrimPrefix(line, "#")); !strings.Contains(string(data), line) {
			t.Errorf("docs/conformance.md does not have %q of test/conformance/lists/failing.txt", line)
		}
	}
	for _, want := range []string{
		fmt.Sprintf("has %d Conformance tests", upstream),
		fmt.Sprintf("| all tests, on two real nodes | %d | %d |", upstream-failing, failing),
		fmt.Sprintf("| `test/conformance/lists/nodeless.txt` | %d |", nodeless),
		fmt.Sprintf("| `test/conformance/lists/simulated.txt` | %d |", simulated),
		fmt.Sprintf("| `test/conformance/lists/excluded.txt` | %d |", excluded),
		fmt.Sprintf("| tests that need no node | %d | 0 |", nodeless),
		fmt.Sprintf("| tests that need simulated nodes | %d | 0 |", simulated),
	} {
		if !strings.Contains(string(data), want) {
			t.Errorf("docs/conformance.md does not have %q, which follows from test/conformance/lists", want)
		}
	}
}
