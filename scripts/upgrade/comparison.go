package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/server/deviations"
)

// packageTests are the tests of one package that compare Karve with upstream.
type packageTests struct {
	dir    string // of the package, from the top of the repository
	module string // directory of its module
	names  []string
}

// pattern is the package as the go command takes it in the directory of the module.
func (t packageTests) pattern() string {
	rest, err := filepath.Rel(t.module, t.dir)
	if err != nil {
		return t.dir
	}
	return "./" + rest
}

var (
	testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)\w+)\(`)
	// comparing are the tests that compare with upstream's tables, beside those that the
	// table of deviations names.
	comparing = regexp.MustCompile(`Upstream|KubernetesIs|OldData|EveryDefaultController|FeatureGates`)
)

// comparisonTests returns the tests that an upgrade may break where the code still compiles.
func comparisonTests(ctx context.Context) ([]packageTests, error) {
	out, err := exec.CommandContext(ctx, "git", "ls-files", "*_test.go").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	modules, err := ownModules(ctx)
	if err != nil {
		return nil, err
	}
	named := map[string]bool{}
	for _, d := range deviations.Table {
		for _, test := range d.Tests {
			named[test] = true
		}
	}
	found := map[string]*packageTests{}
	for _, file := range strings.Fields(string(out)) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		dir := filepath.Dir(file)
		for _, m := range testFunction.FindAllSubmatch(text, -1) {
			name := string(m[1])
			if !named[name] && !comparing.MatchString(name) || strings.Contains("/"+dir, "/testdata/") {
				continue
			}
			if found[dir] == nil {
				found[dir] = &packageTests{dir: dir, module: moduleOf(dir, modules)}
			}
			found[dir].names = append(found[dir].names, name)
		}
	}
	var all []packageTests
	for _, dir := range slices.Sorted(maps.Keys(found)) {
		all = append(all, *found[dir])
	}
	return all, nil
}

// moduleOf returns the innermost module that has a directory.
func moduleOf(dir string, modules []string) string {
	for d := dir; ; d = filepath.Dir(d) {
		if d == "." || slices.Contains(modules, d) {
			return d
		}
	}
}
