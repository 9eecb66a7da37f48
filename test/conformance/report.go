package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/onsi/ginkgo/v2/types"
)

// A result is the result of one test.
type result struct {
	name    string
	state   types.SpecState
	message string
}

func (r result) failed() bool {
	return r.state != types.SpecStatePassed && r.state != types.SpecStateSkipped
}

// readReport reads ginkgo's report of all processes.
func readReport(file string) ([]result, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read the suite's report: %w", err)
	}
	var reports []types.Report
	if err := json.Unmarshal(data, &reports); err != nil {
		return nil, fmt.Errorf("read the suite's report: %w", err)
	}
	var results []result
	for _, r := range reports {
		for _, spec := range r.SpecReports {
			if name := spec.FullText(); spec.LeafNodeType == types.NodeTypeIt && strings.Contains(name, "[Conformance]") {
				results = append(results, result{name, spec.State, spec.FailureMessage()})
			}
		}
	}
	return results, nil
}

// whole checks that there is one result for each test.
func whole(results []result, tests []string) error {
	seen := map[string]int{}
	for _, r := range results {
		seen[r.name]++
	}
	for _, name := range tests {
		if seen[name] != 1 {
			return fmt.Errorf("the suite's report has %d results of %s, not one", seen[name], name)
		}
	}
	return nil
}

// summarise prints the failures and a line of numbers. It returns an error if a test failed that is not known to
// fail, or if one passed that is. known has the reasons.
func summarise(w io.Writer, list string, results []result, known map[string]string, took time.Duration) error {
	var problems []error
	passed, failed, skipped := 0, 0, 0
	for _, r := range results {
		reason, isKnown := known[r.name]
		switch {
		case r.failed():
			failed++
			fmt.Fprintf(w, "\n%s %s\n%s\n", strings.ToUpper(r.state.String()), r.name, r.message)
			if isKnown {
				fmt.Fprintf(w, "known: %s\n", reason)
			} else {
				problems = append(problems, fmt.Errorf("%s: %s: %s", list, r.name, r.state))
			}
		case r.state == types.SpecStateSkipped:
			skipped++
		default:
			passed++
			if isKnown {
				problems = append(problems, fmt.Errorf("%s passed: take it out of lists/%s.txt", r.name, failingList))
			}
		}
	}
	fmt.Fprintf(w, "%s: %d passed, %d failed, %d skipped in %.0f s\n", list, passed, failed, skipped, took.Seconds())
	return errors.Join(problems...)
}
