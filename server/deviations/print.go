package deviations

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Print writes the names of Table, and what each deviation does, for people.
func Print(w io.Writer) error {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(columns, "NAME\tINSTEAD OF UPSTREAM'S CODE")
	for _, d := range Table {
		fmt.Fprintf(columns, "%s\t%s\n", d.Name, d.Instead)
	}
	return columns.Flush()
}

// Document writes Table as Markdown, for users. `go test ./server/deviations -update` puts that into
// docs/deviations.md.
func Document(w io.Writer) error {
	var text strings.Builder
	text.WriteString("| name | what runs in place of upstream's code | gain |\n|---|---|---|\n")
	for _, d := range Table {
		fmt.Fprintf(&text, "| `%s` | %s | %s |\n", d.Name, d.Instead, d.Gain)
	}
	_, err := io.WriteString(w, text.String())
	return err
}
