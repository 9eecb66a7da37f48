package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// repeating are the files that repeat the version of Kubernetes or that of its staging modules.
var repeating = []string{"internal/version/version.go", "test/bench/binaries.go", "CONTRIBUTING.md", "docs/recipes.md"}

// releaseNumber is the number of Karve's release.
var releaseNumber = regexp.MustCompile(`(?m)^(const Release = ")[0-9]+"$`)

// edit names the new version in every go.mod and in the files that repeat it, where the number of Karve's
// release begins at 1 again. It returns the directories of the modules, each after those that it requires.
func edit(ctx context.Context, from, to string) (modules []string, err error) {
	files, err := output(ctx, "git", "ls-files", "go.mod", "*/go.mod")
	if err != nil {
		return nil, err
	}
	mods := map[string]*modfile.File{}
	for file := range strings.FieldsSeq(string(files)) {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		if mods[file], err = modfile.Parse(file, text, nil); err != nil {
			return nil, err
		}
		modules = append(modules, filepath.Dir(file))
	}
	slices.SortStableFunc(modules, func(a, b string) int {
		return ownRequired(mods[filepath.Join(a, "go.mod")]) - ownRequired(mods[filepath.Join(b, "go.mod")])
	})
	present := required(mods["go.mod"])[kubernetes]
	if present == to {
		return modules, nil // an earlier run has made the edits
	}
	changes, err := output(ctx, "git", "status", "--porcelain")
	if err != nil {
		return nil, err
	}
	if present != from || len(changes) > 0 {
		return nil, fmt.Errorf("the work tree has changes: commit or remove them, and begin again\n%s", changes)
	}
	upstream, err := upstreamMod(ctx, to)
	if err != nil {
		return nil, err
	}
	for file, mod := range mods {
		if err := move(mod, required(upstream), from, to); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
	}
	for _, file := range repeating {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		edited := bytes.ReplaceAll(text, []byte(from), []byte(to))
		edited = bytes.ReplaceAll(edited, []byte(staging(from)), []byte(staging(to)))
		if bytes.Equal(edited, text) {
			return nil, fmt.Errorf("%s does not have %s or %s, which it repeats", file, from, staging(from))
		}
		if err := os.WriteFile(file, releaseNumber.ReplaceAll(edited, []byte(`${1}1"`)), 0o644); err != nil {
			return nil, err
		}
	}
	for file, mod := range mods {
		if err := os.WriteFile(file, modfile.Format(mod.Syntax), 0o644); err != nil {
			return nil, err
		}
	}
	return modules, nil
}

// ownRequired returns how many of the repository's modules a module requires, to sort it behind them. The main
// module counts for all that it requires.
func ownRequired(mod *modfile.File) (n int) {
	for _, r := range mod.Require {
		switch {
		case r.Mod.Path == "github.com/karve-k8s/karve":
			n += 10
		case strings.HasPrefix(r.Mod.Path, "github.com/karve-k8s/karve/"):
			n++
		}
	}
	return n
}

// ownVersion begins the comment at a requirement or replacement that has the version that Kubernetes requires.
const ownVersion = "Kubernetes' own version"

// move names the new version of Kubernetes in a go.mod, and of what moves with it: the staging modules, and
// the modules that have Kubernetes' own version. upstream has the requirements of the new version.
func move(mod *modfile.File, upstream map[string]string, from, to string) error {
	next := func(path, version string, line *modfile.Line) (string, error) {
		switch {
		case path == kubernetes && version == from:
			return to, nil
		case strings.HasPrefix(path, "k8s.io/") && version == staging(from):
			return staging(to), nil
		case isOwn(line) && upstream[path] == "":
			return "", fmt.Errorf("%s: Kubernetes %s does not require it: take the newest, or write another reason", path, to)
		case isOwn(line):
			return upstream[path], nil
		}
		return version, nil
	}
	for _, r := range mod.Require {
		version, err := next(r.Mod.Path, r.Mod.Version, r.Syntax)
		if err != nil {
			return err
		}
		if version == r.Mod.Version {
			continue
		}
		if err := mod.AddRequire(r.Mod.Path, version); err != nil {
			return err
		}
	}
	replaced := map[string]bool{}
	for _, r := range slices.Clone(mod.Replace) {
		version, err := next(r.New.Path, r.New.Version, r.Syntax)
		if err != nil {
			return err
		}
		if r.New.Version == version {
			continue
		}
		if strings.HasPrefix(r.Old.Path, "k8s.io/") {
			replaced[r.Old.Path] = true
			// Upstream may have removed a staging module that nothing of Karve's needs.
			if upstream[r.Old.Path] == "" {
				if err := mod.DropReplace(r.Old.Path, r.Old.Version); err != nil {
					return err
				}
				continue
			}
		}
		if err := mod.AddReplace(r.Old.Path, r.Old.Version, r.New.Path, version); err != nil {
			return err
		}
	}
	for _, path := range slices.Sorted(maps.Keys(upstream)) { // new staging modules
		if len(replaced) > 0 && upstream[path] == "v0.0.0" && !replaced[path] {
			if err := mod.AddReplace(path, "", path, staging(to)); err != nil {
				return err
			}
		}
	}
	mod.Cleanup()
	mod.SortBlocks()
	return nil
}

func isOwn(line *modfile.Line) bool {
	for _, c := range slices.Concat(line.Suffix, line.Before) {
		if strings.HasPrefix(strings.TrimSpace(strings.TrimPrefix(c.Token, "//")), ownVersion) {
			return true
		}
	}
	return false
}
