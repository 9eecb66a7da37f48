// Package output prints the results of commands, as a table or as JSON, and their progress.
package output

import (
	"encoding/json"
	"io"
	"text/tabwriter"

	"github.com/urfave/cli/v2"
)

// Flag is --output.
func Flag() cli.Flag {
	return &cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "table", Usage: "`FORMAT`: table or json"}
}

// Show writes value as JSON, or what table writes, as --output asks.
func Show(c *cli.Context, value any, table func(io.Writer)) error {
	if c.String("output") != "json" {
		w := tabwriter.NewWriter(c.App.Writer, 0, 0, 3, ' ', 0)
		table(w)
		return w.Flush()
	}
	encoder := json.NewEncoder(c.App.Writer)
	encoder.SetIndent("", "  ")
	return encoder.Encode(value)
}
