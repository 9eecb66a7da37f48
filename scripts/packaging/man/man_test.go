package man

import (
	"strings"
	"testing"
	"time"
)

// What roff would take for its own commands is text, and every kind of line of a help is in the page.
func TestPage(t *testing.T) {
	help, err := parse(`Usage: karve certs list [OPTION...]

List the certificates, and
.when they expire.

A second paragraph: C:\data.

OPTIONS
  -o, --output FORMAT           table or json (default:
                                table)

MORE OPTIONS
  --data-dir DIR
      DIR for state

The end.
`)
	if err != nil {
		t.Fatal(err)
	}
	page := help.roff([]string{"certs", "list"}, "v1", time.Unix(0, 0))
	for _, want := range []string{
		"\nkarve\\-certs\\-list \\- list the certificates, and .when they expire\n",
		"\nkarve certs list [OPTION...]\n",
		"\n\\&.when they expire.\n",
		"C:\\edata",
		"\n.SH OPTIONS\n.TP\n\\fB\\-o, \\-\\-output FORMAT\\fR\ntable or json (default: table)\n",
		"\n.SH MORE OPTIONS\n.TP\n\\fB\\-\\-data\\-dir DIR\\fR\nDIR for state\n",
		"\nThe end.\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	if _, err := parse("kubectl controls the cluster\n"); err == nil {
		t.Error("another program's help is taken for karve's")
	}
}
