package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// check prints what of the main module does not compile with another version of Kubernetes. It builds nothing, and edits
// no file: a go.mod of that version is in a temporary directory.
func check(ctx context.Context, out io.Writer, to string) error {
	dir, err := os.MkdirTemp("", "karve-upgrade-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	missing, err := writeMod(ctx, dir, to)
	if err != nil {
		return err
	}
	packages, err := list(ctx, filepath.Join(dir, "go.mod"))
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "\n== What does not compile with Kubernetes %s\n", to)
	for _, module := range missing {
		fmt.Fprintf(out, "not available, and empty here, which has errors of its own: %s\n", module)
	}
	wd, err := os.Getwd()
	if err != nil {
		return err
	}
	problems := typeCheck(packages, wd+"/")
	for _, p := range problems {
		fmt.Fprintln(out, p)
	}
	fmt.Fprintf(out, "%d errors\n", len(problems))
	return nil
}

// writeMod writes a go.mod of the new version, with an empty module in place of each of Kubernetes' that
// the module proxy does not have. It returns those.
func writeMod(ctx context.Context, dir, to string) (missing []string, err error) {
	text, err1 := os.ReadFile("go.mod")
	sums, err2 := os.ReadFile("go.sum")
	mod, err3 := modfile.Parse("go.mod", text, nil)
	upstream, err4 := upstreamMod(ctx, to)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, err
	}
	if from := required(mod)[kubernetes]; from != to { // otherwise an earlier run has made the edits
		if err := move(mod, required(upstream), from, to); err != nil {
			return nil, err
		}
	}
	for path, version := range required(upstream) {
		if !strings.Contains(path, "k8s.io/") {
			continue
		}
		if version == "v0.0.0" {
			version = staging(to)
		}
		if _, err := download(ctx, path, version); err == nil {
			continue
		}
		missing = append(missing, path+" "+version)
		empty := filepath.Join(dir, path)
		if err := errors.Join(os.MkdirAll(empty, 0o700), os.WriteFile(filepath.Join(empty, "go.mod"), []byte("module "+path+"\n"), 0o600),
			mod.AddReplace(path, "", empty, "")); err != nil {
			return nil, err
		}
	}
	slices.Sort(missing)
	return missing, errors.Join(os.WriteFile(filepath.Join(dir, "go.mod"), modfile.Format(mod.Syntax), 0o600), os.WriteFile(filepath.Join(dir, "go.sum"), sums, 0o600))
}

// listed is a package as go list prints it.
type listed struct {
	Dir, ImportPath string
	GoFiles         []string
	ImportMap       map[string]string
	Module          struct{ Main bool }
}

// list returns the packages of the main module, their tests, and what they import, each after its imports.
func list(ctx context.Context, mod string) (packages []listed, err error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-e", "-deps", "-test", "-mod=mod", "-modfile="+mod, "-json=Dir,ImportPath,GoFiles,ImportMap,Module", "./...")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return nil, fmt.Errorf("go list: %w\n%s", err, exit.Stderr)
	} else if err != nil {
		return nil, err
	}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p listed
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		packages = append(packages, p)
	}
}

// typeCheck returns the errors in the packages of the main module, which is in root. It skips the bodies of the others' functions.
func typeCheck(packages []listed, root string) []string {
	checked, found, set := map[string]*types.Package{}, map[string]bool{}, token.NewFileSet()
	for _, p := range packages {
		if p.ImportPath == "unsafe" || strings.HasSuffix(p.ImportPath, ".test") {
			continue
		}
		report := func(err error) {
			if p.Module.Main {
				line, _, _ := strings.Cut(err.Error(), "\n") // the others have the types in full
				found[strings.TrimPrefix(line, root)] = true
			}
		}
		var files []*ast.File
		for _, name := range p.GoFiles {
			file, err := parser.ParseFile(set, filepath.Join(p.Dir, name), nil, parser.SkipObjectResolution)
			if err != nil {
				report(err)
				continue
			}
			files = append(files, file)
		}
		config := types.Config{
			IgnoreFuncBodies: !p.Module.Main, FakeImportC: true, Sizes: types.SizesFor("gc", runtime.GOARCH), Error: report,
			Importer: importer(func(path string) (*types.Package, error) {
				if path == "unsafe" {
					return types.Unsafe, nil
				}
				if mapped, ok := p.ImportMap[path]; ok {
					path = mapped
				}
				if q := checked[path]; q != nil {
					return q, nil
				}
				return nil, fmt.Errorf("there is no package %s", path)
			}),
		}
		path, _, _ := strings.Cut(p.ImportPath, " ") // a package with its tests has their name behind it
		checked[p.ImportPath], _ = config.Check(path, set, files, nil)
	}
	return slices.Sorted(maps.Keys(found))
}

type importer func(path string) (*types.Package, error)

func (i importer) Import(path string) (*types.Package, error) { return i(path) }
