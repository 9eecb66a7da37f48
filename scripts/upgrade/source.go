package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/karve-k8s/karve/server/deviations/mirrors"
)

// pkg is a parsed package, without its comments and tests.
type pkg struct {
	path  string
	set   *token.FileSet
	files []*ast.File
	// constants and variables that have a value of their own, and the file in which it stands
	values map[string]value
}

type value struct {
	file *ast.File
	expr ast.Expr
}

// load parses a package, once. It returns nil for one that the release does not have.
func (r *release) load(path string) (*pkg, error) {
	if p, ok := r.packages[path]; ok {
		return p, nil
	}
	dir, ok := r.dir(path)
	if !ok {
		return nil, nil
	}
	files, err := mirrors.Files(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("%s of %s: %w", path, r.version, err)
	}
	p := &pkg{path: path, set: token.NewFileSet(), values: map[string]value{}}
	for _, name := range files {
		file, err := parser.ParseFile(p.set, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return nil, err
		}
		p.files = append(p.files, file)
		for _, declaration := range file.Decls {
			general, ok := declaration.(*ast.GenDecl)
			if !ok {
				continue
			}
			for _, spec := range general.Specs {
				if v, ok := spec.(*ast.ValueSpec); ok && len(v.Values) == len(v.Names) {
					for i, name := range v.Names {
						p.values[name.Name] = value{file, v.Values[i]}
					}
				}
			}
		}
	}
	r.packages[path] = p
	return p, nil
}

// linked returns the packages of Kubernetes that the given ones import, themselves included,
// in the order of their paths.
func (r *release) linked(roots ...string) ([]*pkg, error) {
	seen := map[string]*pkg{}
	for queue := slices.Clone(roots); len(queue) > 0; queue = queue[1:] {
		if _, ok := seen[queue[0]]; ok {
			continue
		}
		p, err := r.load(queue[0])
		if err != nil {
			return nil, err
		}
		seen[queue[0]] = p
		if p == nil {
			continue
		}
		for _, file := range p.files {
			for _, spec := range file.Imports {
				if path := literal(spec.Path); strings.HasPrefix(path, "k8s.io/") {
					queue = append(queue, path)
				}
			}
		}
	}
	var all []*pkg
	for _, p := range seen {
		if p != nil && len(p.files) > 0 {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *pkg) int { return strings.Compare(a.path, b.path) })
	return all, nil
}

// text evaluates an expression that is a constant string, also one of another package.
func (r *release) text(p *pkg, file *ast.File, e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			return literal(e), true
		}
	case *ast.ParenExpr:
		return r.text(p, file, e.X)
	case *ast.BinaryExpr:
		x, ok := r.text(p, file, e.X)
		y, okY := r.text(p, file, e.Y)
		return x + y, ok && okY && e.Op == token.ADD
	case *ast.Ident:
		if v, ok := p.values[e.Name]; ok {
			return r.text(p, v.file, v.expr)
		}
	case *ast.CallExpr: // a conversion: string(x)
		if name, ok := e.Fun.(*ast.Ident); ok && name.Name == "string" && len(e.Args) == 1 {
			return r.text(p, file, e.Args[0])
		}
	case *ast.SelectorExpr:
		if name, ok := e.X.(*ast.Ident); ok {
			if other := r.imported(file, name.Name); other != nil {
				if v, ok := other.values[e.Sel.Name]; ok {
					return r.text(other, v.file, v.expr)
				}
			}
		}
	}
	return "", false
}

var majorVersion = regexp.MustCompile(`/v\d+$`)

// imported returns the package that a file calls by a name, or nil.
func (r *release) imported(file *ast.File, name string) *pkg {
	path := importPath(file, name)
	if path == "" {
		return nil
	}
	p, err := r.load(path)
	if err != nil {
		return nil // a package that only other platforms have
	}
	return p
}

func importPath(file *ast.File, name string) string {
	for _, spec := range file.Imports {
		path := literal(spec.Path)
		switch {
		case spec.Name != nil:
			if spec.Name.Name == name {
				return path
			}
		case path == name, strings.HasSuffix(path, "/"+name), strings.HasSuffix(majorVersion.ReplaceAllString(path, ""), "/"+name):
			return path
		}
	}
	return ""
}

func literal(lit *ast.BasicLit) string {
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return lit.Value
	}
	return text
}

// code returns an expression as gofmt prints it, in one line.
func code(p *pkg, node ast.Node) string {
	var out strings.Builder
	if err := format.Node(&out, p.set, node); err != nil {
		return fmt.Sprint(err)
	}
	return strings.Join(strings.Fields(out.String()), " ")
}
