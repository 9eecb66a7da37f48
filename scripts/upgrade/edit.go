package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// goMods returns the paths of all go.mod files of the repository, from its top.
func goMods(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "git", "ls-files", "go.mod", "*/go.mod").Output()
	if err != nil {
		return nil, fmt.Errorf("git ls-files: %w", err)
	}
	files := strings.Fields(string(out))
	slices.Sort(files)
	return files, nil
}

// ownModules returns the directories of the repository's modules, each after those that it
// replaces by a directory.
func ownModules(ctx context.Context) ([]string, error) {
	files, err := goMods(ctx)
	if err != nil {
		return nil, err
	}
	var order []string
	seen := map[string]bool{}
	var visit func(dir string) error
	visit = func(dir string) error {
		if seen[dir] {
			return nil
		}
		seen[dir] = true
		mod, err := readGoMod(ctx, filepath.Join(dir, "go.mod"))
		if err != nil {
			return err
		}
		for _, r := range mod.Replace {
			if strings.HasPrefix(r.New.Path, ".") {
				if err := visit(filepath.Join(dir, r.New.Path)); err != nil {
					return err
				}
			}
		}
		order = append(order, dir)
		return nil
	}
	for _, file := range files {
		if err := visit(filepath.Dir(file)); err != nil {
			return nil, err
		}
	}
	return order, nil
}

// edit names the new version in every go.mod, and in the constants that repeat it.
func (u *upgrade) edit() error {
	oldStaging, err := stagingVersion(u.state.From)
	if err != nil {
		return err
	}
	newStaging, err := stagingVersion(u.state.To)
	if err != nil {
		return err
	}
	dirs, err := downloadModules(u.ctx, kubernetes+"@"+u.state.To)
	if err != nil {
		return err
	}
	upstream, err := readGoMod(u.ctx, filepath.Join(dirs[kubernetes], "go.mod"))
	if err != nil {
		return err
	}
	files, err := goMods(u.ctx)
	if err != nil {
		return err
	}
	for _, file := range files {
		mod, err := readGoMod(u.ctx, file)
		if err != nil {
			return err
		}
		args := goModEdits(mod, upstream, u.state.To, oldStaging, newStaging, func(path string) bool {
			_, err := downloadModules(u.ctx, path+"@"+newStaging)
			return err == nil
		})
		fmt.Fprintf(u.out, "%s: %d edits\n", file, len(args))
		for _, arg := range args {
			if strings.HasPrefix(arg, "-dropreplace") {
				fmt.Fprintf(u.out, "%s: %s, because there is no %s of it\n", file, arg, newStaging)
			}
		}
		if len(args) == 0 {
			continue
		}
		if err := u.command(".", "go", append(append([]string{"mod", "edit"}, args...), file)...); err != nil {
			return err
		}
	}
	return errors.Join(editConstants(u.state.From, u.state.To), editStaging(oldStaging, newStaging))
}

// goModEdits are the arguments of `go mod edit` that move a go.mod to the new release:
// requirements and replacements of the old one, and replacements of staging modules that
// upstream has added. has tells whether a module has the new version; a replacement of one
// that has not is dropped, unless upstream requires it.
func goModEdits(mod, upstream *goMod, version, oldStaging, newStaging string, has func(path string) bool) []string {
	staging := map[string]bool{} // upstream requires them
	for _, r := range upstream.Require {
		staging[r.Path] = r.Version == "v0.0.0"
	}
	var args []string
	for _, r := range mod.Require {
		switch {
		case r.Path == kubernetes:
			args = append(args, "-require="+r.Path+"@"+version)
		case strings.HasPrefix(r.Path, "k8s.io/") && r.Version == oldStaging:
			args = append(args, "-require="+r.Path+"@"+newStaging)
		}
	}
	replaced := map[string]bool{}
	for _, r := range mod.Replace {
		if !strings.HasPrefix(r.New.Path, "k8s.io/") || r.New.Version != oldStaging {
			continue
		}
		replaced[r.Old.Path] = true
		if staging[r.Old.Path] || has(r.New.Path) {
			args = append(args, "-replace="+r.Old.Path+"="+r.New.Path+"@"+newStaging)
		} else {
			args = append(args, "-dropreplace="+r.Old.Path)
		}
	}
	if len(replaced) > 0 {
		for _, r := range upstream.Require {
			if staging[r.Path] && !replaced[r.Path] {
				args = append(args, "-replace="+r.Path+"="+r.Path+"@"+newStaging)
			}
		}
	}
	return args
}

// constants are the files that repeat the version.
var constants = []string{versionFile, "servertest/process/fetch.go", "test/bench/binaries.go", "CONTRIBUTING.md"}

// releaseNumber is the number of Karve's release, alone or after the version of Kubernetes.
var releaseNumber = regexp.MustCompile(`(?m)^(const Release = "|const Version = ".*\+karve\.)[0-9]+"$`)

// editConstants names the new version in the files that repeat it, and begins to count
// Karve's releases anew.
func editConstants(from, to string) error {
	for _, file := range constants {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		edited := bytes.ReplaceAll(text, []byte(from), []byte(to))
		edited = releaseNumber.ReplaceAll(edited, []byte(`${1}1"`))
		if bytes.Equal(edited, text) && !bytes.Contains(text, []byte(to)) {
			return fmt.Errorf("%s does not have %s, which it repeats", file, from)
		}
		if err := os.WriteFile(file, edited, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// stagingConstants are the files that repeat the version of the staging modules, such as v0.37.2.
var stagingConstants = []string{"docs/recipes.md"}

// editStaging names the new version in the files that repeat that of the staging modules.
func editStaging(from, to string) error {
	for _, file := range stagingConstants {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		edited := bytes.ReplaceAll(text, []byte(from), []byte(to))
		if !bytes.Contains(edited, []byte(to)) {
			return fmt.Errorf("%s does not have %s, which it repeats", file, from)
		}
		if err := os.WriteFile(file, edited, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// mentions lists what else has the old version in its text. Figures keep it: they were
// measured with it.
func (u *upgrade) mentions() error {
	grep := exec.CommandContext(u.ctx, "git", "grep", "-nF", u.state.From, "--", ".", ":!docs/figures*", ":!*testdata*")
	grep.Stdout, grep.Stderr = u.out, u.out
	err := grep.Run()
	if grep.ProcessState != nil && grep.ProcessState.ExitCode() == 1 {
		fmt.Fprintf(u.out, "nothing else mentions %s\n", u.state.From)
		return nil
	}
	return err
}
