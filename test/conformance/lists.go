package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A list is a file of tests that Karve passes, one name in each line.
type list struct {
	Name  string
	Nodes bool // they need simulated nodes
	tests []string
}

// excludedList is the file of the excluded tests, below a line "# REASON".
const excludedList = "excluded"

// failingList is the file of the tests that do not pass on the real nodes of scripts/nodes, below a
// line "# REASON". They are in one of the other lists too.
const failingList = "failing"

var lists = []*list{{Name: "nodeless"}, {Name: "simulated", Nodes: true}}

func listNames() (names []string) {
	for _, l := range lists {
		names = append(names, l.Name)
	}
	return names
}

func listOf(name string) *list {
	if i := slices.Index(listNames(), name); i >= 0 {
		return lists[i]
	}
	return nil
}

// upstreamTests returns the names of upstream's Conformance tests, which upstream keeps in a file. Its version is the one
// in the go.mod of module.
func upstreamTests(ctx context.Context, module string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	cmd.Dir, cmd.Stderr = module, os.Stderr
	source, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("find Kubernetes in the module cache: %w", err)
	}
	data, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(source)), "test/conformance/testdata/conformance.yaml"))
	if err != nil {
		return nil, fmt.Errorf("read upstream's list of Conformance tests: %w", err)
	}
	var tests []struct{ Codename string }
	if err := yaml.Unmarshal(data, &tests); err != nil || len(tests) == 0 {
		return nil, fmt.Errorf("upstream's list of Conformance tests has %d: %w", len(tests), err)
	}
	var names []string
	for _, t := range tests {
		names = append(names, t.Codename)
	}
	slices.Sort(names)
	return names, nil
}

// readLists reads the lists. It is an error if one of upstream's tests is in none of them or in two, or if a listed test
// is not upstream's.
func readLists(dir string, upstream []string) error {
	seen := map[string]string{}
	var problems []error
	for _, name := range append(listNames(), excludedList) {
		file := filepath.Join(dir, name+".txt")
		groups, err := readList(file)
		if err != nil {
			return err
		}
		var tests []string
		for _, g := range groups {
			if name == excludedList && g.reason == "" && len(g.tests) > 0 {
				problems = append(problems, fmt.Errorf("%s: %s is below no line \"# REASON\"", file, g.tests[0]))
			}
			for _, test := range g.tests {
				if before, ok := seen[test]; ok {
					problems = append(problems, fmt.Errorf("%s: %s is also in %s", file, test, before))
				}
				seen[test] = file
				if !slices.Contains(upstream, test) {
					problems = append(problems, fmt.Errorf("%s: upstream has no Conformance test %s: take it out", file, test))
				}
			}
			tests = append(tests, g.tests...)
		}
		if l := listOf(name); l != nil {
			l.tests = tests
		}
	}
	for _, name := range upstream {
		if seen[name] == "" {
			problems = append(problems, fmt.Errorf("%s: upstream's Conformance test %s is in no list: add it to the one that fits, see scripts/conformance -all", dir, name))
		}
	}
	return errors.Join(problems...)
}

// readFailing returns the reason of each test that is known to fail on real nodes.
func readFailing(dir string, upstream []string) (map[string]string, error) {
	file := filepath.Join(dir, failingList+".txt")
	groups, err := readList(file)
	if err != nil {
		return nil, err
	}
	reasons := map[string]string{}
	var problems []error
	for _, g := range groups {
		for _, name := range g.tests {
			if g.reason == "" {
				problems = append(problems, fmt.Errorf("%s: %s is below no line \"# REASON\"", file, name))
			}
			if _, ok := reasons[name]; ok {
				problems = append(problems, fmt.Errorf("%s: %s is there twice", file, name))
			}
			if !slices.Contains(upstream, name) {
				problems = append(problems, fmt.Errorf("%s: upstream has no Conformance test %s: take it out", file, name))
			}
			reasons[name] = g.reason
		}
	}
	return reasons, errors.Join(problems...)
}

type group struct {
	reason string
	tests  []string
}

func readList(file string) ([]group, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, fmt.Errorf("read list: %w", err)
	}
	defer f.Close()
	groups := []group{{}}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		switch rest, isReason := strings.CutPrefix(line, "#"); {
		case line == "":
		case isReason:
			groups = append(groups, group{reason: strings.TrimSpace(rest)})
		default:
			last := &groups[len(groups)-1]
			last.tests = append(last.tests, line)
		}
	}
	return groups, lines.Err()
}
