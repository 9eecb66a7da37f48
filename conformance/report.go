package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"
)

// A report is the result of the tests in the lists.
type report struct {
	Kubernetes string       `json:"kubernetes"`
	Tests      int          `json:"conformanceTests"` // all that upstream has
	Lists      []listReport `json:"lists"`
	Excluded   []reason     `json:"excluded"`

	Failing map[string]string `json:"failing,omitempty"` // the tests that are known to fail, with their reasons
}

type listReport struct {
	Name    string   `json:"name"`
	Seconds float64  `json:"seconds"` // by the clock, the server's start included
	Tests   []result `json:"tests"`
}

func (r *report) add(l *list, results []result, took time.Duration) {
	slices.SortFunc(results, func(a, b result) int { return strings.Compare(a.Name, b.Name) })
	r.Lists = append(r.Lists, listReport{l.Name, took.Seconds(), results})
}

// groupOf returns the special interest group at the beginning of a test's name.
func groupOf(name string) string {
	if group, _, ok := strings.Cut(name, "] "); ok {
		return strings.TrimPrefix(group, "[sig-")
	}
	return "other"
}

type row struct {
	name                    string
	passed, failed, skipped int
	seconds                 float64
}

func (w *row) count(r result) {
	switch {
	case r.failed():
		w.failed++
	case r.State == "skipped":
		w.skipped++
	default:
		w.passed++
	}
	w.seconds += r.Seconds
}

// print writes a table with a line for each group of each list, the reasons of the excluded
// tests, and the failures. The seconds of a group are the sum of its tests; those of a list
// are by the clock.
func (r *report) print(w io.Writer) {
	fmt.Fprintf(w, "Kubernetes %s, %d Conformance tests\n\n", r.Kubernetes, r.Tests)
	const columns = "%-10s  %-22s  %6v  %6v  %7v  %7v\n"
	fmt.Fprintf(w, columns, "list", "group", "passed", "failed", "skipped", "seconds")
	for _, l := range r.Lists {
		var rows []*row
		all := &row{name: "all, on the clock"}
		for _, test := range l.Tests {
			name := groupOf(test.Name)
			i := slices.IndexFunc(rows, func(w *row) bool { return w.name == name })
			if i < 0 {
				i = len(rows)
				rows = append(rows, &row{name: name})
			}
			rows[i].count(test)
			all.count(test)
		}
		all.seconds = l.Seconds
		for _, row := range append(rows, all) {
			fmt.Fprintf(w, columns, l.Name, row.name, row.passed, row.failed, row.skipped, math.Round(row.seconds))
		}
	}
	if len(r.Excluded) > 0 {
		fmt.Fprintln(w, "\nnot run:")
	}
	for _, e := range r.Excluded {
		fmt.Fprintf(w, "%5d  %s\n", e.Tests, e.Reason)
	}
	for _, l := range r.Lists {
		for _, test := range l.Tests {
			if test.failed() {
				fmt.Fprintf(w, "\n%s %s\n", strings.ToUpper(test.State), test.Name)
				if reason := r.Failing[test.Name]; reason != "" {
					fmt.Fprintf(w, "known: %s\n", reason)
				}
				fmt.Fprintln(w, tail([]byte(test.Message)))
			}
		}
	}
}

// verdict returns an error if a test failed that is not known to fail, or if one passed that is.
func (r *report) verdict() error {
	var failed []string
	var problems []error
	for _, l := range r.Lists {
		for _, test := range l.Tests {
			_, known := r.Failing[test.Name]
			switch {
			case test.failed() && !known:
				failed = append(failed, test.Name)
			case test.State == "passed" && known:
				problems = append(problems, fmt.Errorf("%s passed: take it out of lists/%s.txt", test.Name, failingList))
			}
		}
	}
	if len(failed) > 0 {
		problems = append(problems, fmt.Errorf("%d tests failed: %s", len(failed), strings.Join(failed, "; ")))
	}
	return errors.Join(problems...)
}
