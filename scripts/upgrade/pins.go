package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// pin is a direct requirement, or a replacement, that is older than the newest version.
type pin struct {
	path, version, newest, reason string
}

// errNoReason is that of a direct requirement that is older than the newest version for no reason
// that stands in go.mod.
var errNoReason = errors.New("take that, or write the reason beside it")

// ownVersion begins the reason of a requirement or replacement that has the version that Kubernetes
// requires.
const ownVersion = "Kubernetes' own version"

// older is pins as a step of an upgrade, which does not fail because another project has made
// a release since.
func (u *upgrade) older() error {
	missing, err := u.listPins()
	if missing != nil {
		fmt.Fprintln(u.out, missing)
	}
	return err
}

// pins lists the direct requirements and the replacements of every module that are older than the
// newest version. Each needs a reason in its go.mod, as a comment beside it or above it.
func (u *upgrade) pins() error { return errors.Join(u.listPins()) }

// listPins returns which reasons are missing, and which ones do not hold.
func (u *upgrade) listPins() (missing, err error) {
	modules, err := ownModules(u.ctx)
	if err != nil {
		return nil, err
	}
	var wrong error
	for _, dir := range modules {
		file := filepath.Join(dir, "go.mod")
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		mod, err := readGoMod(u.ctx, file)
		if err != nil {
			return nil, err
		}
		drifted, err := u.drifted(file, string(text), mod)
		if err != nil {
			return nil, err
		}
		wrong = errors.Join(wrong, drifted)
		older, err := olderRequires(u.ctx, dir, mod)
		if err != nil {
			return nil, err
		}
		for _, p := range older {
			p.reason = reason(string(text), p.path, p.version)
			fmt.Fprintf(u.out, "%s: %s %s, newest %s: %s\n", file, p.path, p.version, p.newest, p.reason)
			if p.reason == "" {
				missing = errors.Join(missing, fmt.Errorf("%s: %s %s is older than %s: %w", file, p.path, p.version, p.newest, errNoReason))
			}
		}
	}
	if missing == nil && wrong == nil {
		fmt.Fprintln(u.out, "every direct requirement and replacement is the newest, or has a reason")
	}
	return missing, wrong
}

// drifted returns which of the requirements and replacements that are said to have Kubernetes' own
// version have another one.
func (u *upgrade) drifted(file, text string, mod *goMod) (wrong, err error) {
	var own []struct{ Path, Version string }
	for _, r := range mod.Require {
		if strings.HasPrefix(reason(text, r.Path, r.Version), ownVersion) {
			own = append(own, struct{ Path, Version string }{r.Path, r.Version})
		}
	}
	for _, r := range mod.Replace {
		if strings.HasPrefix(reason(text, r.New.Path, r.New.Version), ownVersion) {
			own = append(own, r.New)
		}
	}
	if len(own) == 0 {
		return nil, nil
	}
	version, err := currentVersion()
	if err != nil {
		return nil, err
	}
	dirs, err := downloadModules(u.ctx, kubernetes+"@"+version)
	if err != nil {
		return nil, err
	}
	upstream, err := readGoMod(u.ctx, filepath.Join(dirs[kubernetes], "go.mod"))
	if err != nil {
		return nil, err
	}
	requires := upstream.requires()
	for _, m := range own {
		switch want := requires[m.Path]; want {
		case m.Version:
		case "":
			wrong = errors.Join(wrong, fmt.Errorf("%s: %s %s is not %s: upstream does not require it; take the newest, or write another reason", file, m.Path, m.Version, ownVersion))
		default:
			wrong = errors.Join(wrong, fmt.Errorf("%s: %s %s is not %s, which is %s: take that", file, m.Path, m.Version, ownVersion, want))
		}
	}
	return wrong, nil
}

// olderRequires asks the proxy for the newest version of each direct requirement of a module, and of
// each module that is replaced by another version. Kubernetes' own modules are not among them: they
// move with it. Neither are directories of the repository.
func olderRequires(ctx context.Context, dir string, mod *goMod) ([]pin, error) {
	version, err := currentVersion()
	if err != nil {
		return nil, err
	}
	staging, err := stagingVersion(version)
	if err != nil {
		return nil, err
	}
	args := []string{"list", "-mod=mod", "-m", "-u", "-json"}
	replaced := map[string]bool{kubernetes: true}
	for _, r := range mod.Replace {
		replaced[r.Old.Path] = true
		if r.New.Version != "" && (r.Old.Path != r.New.Path || r.New.Version != staging) {
			args = append(args, r.Old.Path)
		}
	}
	for _, r := range mod.Require {
		if !r.Indirect && !replaced[r.Path] {
			args = append(args, r.Path)
		}
	}
	if len(args) == 5 {
		return nil, nil
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go list -m -u in %s: %w", dir, err)
	}
	var older []pin
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var m struct {
			Path, Version   string
			Update, Replace *struct{ Version string }
		}
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			return older, nil
		} else if err != nil {
			return nil, fmt.Errorf("go list -m -u in %s: %w", dir, err)
		}
		newest := m.Version
		if m.Update != nil {
			newest = m.Update.Version
		}
		if m.Replace != nil {
			m.Version = m.Replace.Version
		}
		if compareVersions(m.Version, newest) < 0 {
			older = append(older, pin{path: m.Path, version: m.Version, newest: newest})
		}
	}
}

// reason returns the comment at a requirement or replacement with that version, or the lines of comment above it.
func reason(goMod, path, version string) string {
	lines := strings.Split(goMod, "\n")
	for i, line := range lines {
		requirement, comment, _ := strings.Cut(strings.TrimSpace(line), "//")
		words := strings.Fields(strings.TrimPrefix(strings.TrimPrefix(requirement, "require "), "replace "))
		if arrow := slices.Index(words, "=>"); arrow > 0 {
			words = words[arrow+1:]
		}
		if !slices.Equal(words, []string{path, version}) {
			continue
		}
		if comment = strings.TrimSpace(comment); comment != "" {
			return comment
		}
		var above []string
		for i--; i >= 0 && strings.HasPrefix(strings.TrimSpace(lines[i]), "//"); i-- {
			above = append(above, strings.TrimSpace(strings.TrimLeft(strings.TrimSpace(lines[i]), "/")))
		}
		slices.Reverse(above)
		return strings.Join(above, " ")
	}
	return ""
}
