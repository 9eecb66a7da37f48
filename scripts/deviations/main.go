// Command deviations writes the table of deviations from upstream into docs/deviations.md.
package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/karve-k8s/karve/server/deviations"
)

const (
	file  = "docs/deviations.md"
	begin = "<!-- from here: go run ./scripts/deviations -->\n"
	end   = "<!-- to here -->\n"
)

func main() {
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, "deviations:", err)
		os.Exit(1)
	}
}

func write() error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, rest, ok := strings.Cut(string(text), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		return fmt.Errorf("%s has no lines %q and %q", file, begin, end)
	}
	var table strings.Builder
	if err := deviations.Document(&table); err != nil {
		return err
	}
	return os.WriteFile(file, []byte(before+begin+table.String()+end+after), 0o644)
}
