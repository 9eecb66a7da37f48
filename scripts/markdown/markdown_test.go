package markdown_test

import (
	"os"
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
