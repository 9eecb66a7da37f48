package command

import (
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/karve-k8s/karve/command/output"
)

// printProblems prints an error of a program, with a line for each problem that is joined in it.
func printProblems(w io.Writer, program string, err error) {
	for _, problem := range flatten(err) {
		for line := range strings.Lines(problem.Error()) {
			fmt.Fprintf(w, "%s: %s\n", program, output.Printable(strings.TrimSpace(line)))
		}
	}
}

// flatten undoes errors.Join, and nothing else: an error that wraps two others in a sentence of its
// own stays as it is.
func flatten(err error) []error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return []error{err}
	}
	var all []error
	for _, e := range joined.Unwrap() {
		all = append(all, flatten(e)...)
	}
	if errors.Join(joined.Unwrap()...).Error() != err.Error() {
		return []error{err}
	}
	return all
}
