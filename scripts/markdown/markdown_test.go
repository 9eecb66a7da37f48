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

// docs/testing.md shows a whole test, which servertest/example runs.
func TestTheExampleInTestingPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	test, err := os.ReadFile("../../servertest/example/first_test.go")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(page), "\n```go\n"+string(test)+"```\n") {
		t.Error("docs/testing.md does not have servertest/example/first_test.go as it is")
	}
}
