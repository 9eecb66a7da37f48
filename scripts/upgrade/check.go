package main

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/karve-k8s/karve/server/deviations"
)

// comparing are the tests that compare Karve with upstream, beside those that the table of deviations names.
var comparing = regexp.MustCompile(`Upstream|KubernetesIs|OldData|EveryDefaultController|FeatureGates`)

// check builds, vets, and runs the tests that a new version may break where the code still compiles. A
// failed one does not stop the others.
func check(ctx context.Context, modules []string) error {
	if err := command(ctx, ".", "scripts/build"); err != nil {
		return err
	}
	var failed error
	for _, dir := range modules {
		failed = errors.Join(failed, command(ctx, dir, "go", "vet", "./..."))
	}
	lines, err := output(ctx, "git", "grep", "-E", "^func (Test|Fuzz)", "--", "*_test.go", ":!*/testdata/*")
	if err != nil {
		return err
	}
	tests := comparisons(string(lines))
	for _, dir := range slices.Sorted(maps.Keys(tests)) {
		module := "."
		for _, m := range modules {
			if strings.HasPrefix(dir+"/", m+"/") {
				module = m
			}
		}
		pkg, err := filepath.Rel(module, dir)
		if err != nil {
			return err
		}
		failed = errors.Join(failed, ctx.Err(), command(ctx, module, "go", "test", "-count=1", "-timeout=30m", "-run", "^("+strings.Join(tests[dir], "|")+")$", "./"+pkg))
	}
	return failed
}

// comparisons returns the names of the comparing tests by the directory of their package. Each line is
// one that git grep prints for a test.
func comparisons(lines string) map[string][]string {
	named := map[string]bool{}
	for _, d := range deviations.Table {
		for _, test := range d.Tests {
			named[test] = true
		}
	}
	tests := map[string][]string{}
	for line := range strings.Lines(lines) {
		file, declaration, _ := strings.Cut(line, ":func ")
		name, _, _ := strings.Cut(declaration, "(")
		if named[name] || comparing.MatchString(name) {
			tests[filepath.Dir(file)] = append(tests[filepath.Dir(file)], name)
		}
	}
	return tests
}
