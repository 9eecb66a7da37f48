package main

import (
	"errors"
	"fmt"
	"go/ast"
	"io/fs"
	"os"
	"regexp"
	"strings"

	"github.com/karve-k8s/karve/server/deviations"
	"github.com/karve-k8s/karve/server/deviations/mirrors"
)

// mirrored has the source of each function that Karve mirrors.
func mirrored(r *release) (facts, error) {
	all := facts{}
	for _, m := range mirrors.All {
		source, err := r.declaration(m.Package, m.Function)
		if err != nil {
			return nil, err
		}
		if source != "" {
			all[fmt.Sprintf("%s.%s (%s)", m.Package, m.Function, m.Ours)] = source
		}
	}
	return all, nil
}

// symbol is a name as deviations.Table has it: package.Function or package.(*Type).Method.
var symbol = regexp.MustCompile(`^([\w./-]+/[\w-]+)\.(?:\(\*?(\w+)\)\.)?(\w+(?:\.\w+)?)$`)

// replaced has the source of each symbol that the table of deviations names, and that is not
// mirrored.
func replaced(r *release) (facts, error) {
	all := facts{}
	for _, d := range deviations.Table {
		for _, name := range d.Replaces {
			m := symbol.FindStringSubmatch(name)
			if m == nil {
				continue
			}
			function := m[3]
			if m[2] != "" {
				function = m[2] + "." + m[3]
			}
			source, err := r.declaration(m[1], function)
			if err != nil {
				return nil, err
			}
			if source != "" {
				all[fmt.Sprintf("%s (%s)", name, d.Name)] = source
			}
		}
	}
	return all, nil
}

// movedTo names the packages that declare a function of the same name as one that is gone. name
// is a fact of mirrored or replaced.
func movedTo(r *release, name string) string {
	name, _, _ = strings.Cut(name, " ")
	function := name[strings.LastIndexByte(name, '.')+1:]
	packages, err := r.all()
	if err != nil {
		return ""
	}
	var found []string
	for _, p := range packages {
		for _, file := range p.files {
			for _, declaration := range file.Decls {
				if f, ok := declaration.(*ast.FuncDecl); ok && strings.EqualFold(f.Name.Name, function) {
					found = append(found, p.path+"."+f.Name.Name)
				}
			}
		}
	}
	if len(found) == 0 || len(found) > 5 {
		return "gone, or renamed"
	}
	return "moved? " + strings.Join(found, ", ")
}

// declaration returns the source of a function or variable, empty if there is none.
func (r *release) declaration(path, name string) (string, error) {
	dir, ok := r.dir(path)
	if !ok {
		return "", nil
	}
	_, source, err := mirrors.Find(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // the whole package is gone
	}
	return source, err
}

// urgentNotes are the sections "Urgent Upgrade Notes" of the minor release's changelog.
func urgentNotes(r *release) (facts, error) {
	minor := strings.Join(strings.Split(strings.TrimPrefix(r.version, "v"), ".")[:2], ".")
	text, err := os.ReadFile(r.file("CHANGELOG/CHANGELOG-" + minor + ".md"))
	if err != nil {
		return nil, err
	}
	all := facts{}
	inside := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "## Urgent Upgrade Notes"):
			inside = true
		case strings.HasPrefix(line, "## "), strings.HasPrefix(line, "# "):
			inside = false
		case inside && line != "" && !strings.HasPrefix(line, "#"):
			all[line] = ""
		}
	}
	return all, nil
}
