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

// Document writes Table as Markdown. `go test ./server/deviations -update` puts that into
// docs/deviations.md.
func Document(w io.Writer) error {
	var text strings.Builder
	for _, d := range Table {
		fmt.Fprintf(&text, "\n### %s\n\n%s\n\n", d.Name, d.Instead)
		fmt.Fprintf(&text, "- Replaces: `%s`\n", strings.Join(d.Replaces, "`, `"))
		fmt.Fprintf(&text, "- Code: `%s`\n", d.Code())
		fmt.Fprintf(&text, "- Gain: %s", d.Gain)
		if d.Command != "" {
			fmt.Fprintf(&text, " (`%s`)", d.Command)
		}
		fmt.Fprintf(&text, "\n- Compared with upstream by: %s\n", strings.Join(d.Tests, ", "))
		var needs []string
		for _, n := range d.Needs {
			needs = append(needs, n.Name)
		}
		if len(needs) > 0 {
			fmt.Fprintf(&text, "- Off without: %s\n", strings.Join(needs, ", "))
		}
	}
	_, err := io.WriteString(w, text.String())
	return err
}
