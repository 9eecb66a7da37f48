package markdown_test

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// changing matches the functions that change what may belong to others, by [types.Func.FullName].
var changing = regexp.MustCompile(`^(` +
	`(os|\(\*os\.(File|Root)\)|syscall|golang\.org/x/sys/unix)\.(Remove(All)?|Rename|Link|Symlink|[LF]?[Cc]how?n|F?[Cc]hmod|F?[Tt]runcate|F?Lock|Flock|Unlink|WriteFile|Create|Exec|StartProcess|Kill)` +
	`|os/exec\.Command(Context)?` +
	`|github\.com/karve-k8s/karve/(internal/atomicfile\.(Rename|Write)|datastore/sqlitefile\.Remove)` +
	`)$`)

// ddl matches statements that change the structure of a database.
var ddl = regexp.MustCompile(`(?i)\b(create|alter|drop|truncate)\s+(or\s+replace\s+)?(unique\s+)?(table|index|database|schema|sequence|trigger)\b`)

// effect is a function of a file that changes something, or a variable with such a statement.
type effect struct{ file, function string }

// TestEffects fails if code that removes, renames, overwrites, locks, runs something or changes its owner, mode or
// structure is not in the table of docs/effects.md, or the table has what is not in the code.
func TestEffects(t *testing.T) {
	listed := map[effect]bool{}
	page, err := os.ReadFile("../../docs/effects.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("(?m)^\\| `([^`]+\\.go)`: ([^|]+) \\|")
	for _, cells := range row.FindAllStringSubmatch(string(page), -1) {
		for _, span := range spanPattern.FindAllStringSubmatch(cells[2], -1) {
			listed[effect{cells[1], span[1]}] = true
		}
	}
	found := effects(t, "../..")
	for e := range found {
		if !listed[e] {
			t.Errorf("%s: %s changes something, and docs/effects.md does not say what it looks at first", e.file, e.function)
		}
	}
	for e := range listed {
		if !found[e] {
			t.Errorf("docs/effects.md: %s: %s is not there, or changes nothing", e.file, e.function)
		}
	}
}

// effects are those of the program and of the packages that users import.
func effects(t *testing.T, project string) map[effect]bool {
	t.Helper()
	found := map[effect]bool{}
	standard := importer.Default()
	err := filepath.WalkDir(project, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		switch name, _ := filepath.Rel(project, dir); {
		case slices.Contains([]string{".git", "build", "scripts", "test", "release", "examples"}, name), entry.Name() == "testdata":
			return fs.SkipDir
		}
		return effectsOf(dir, project, standard, found)
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

// effectsOf adds those of one package, in the files for every operating system. Of the imports, only the standard
// library is read: what is unknown in between does not matter.
func effectsOf(dir, project string, standard types.Importer, found map[effect]bool) error {
	files := token.NewFileSet()
	names, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	packages := map[string][]*ast.File{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		packages[file.Name.Name] = append(packages[file.Name.Name], file)
	}
	for _, name := range slices.Sorted(maps.Keys(packages)) {
		info := &types.Info{Uses: map[*ast.Ident]types.Object{}}
		config := types.Config{Importer: standardOnly{standard}, Error: func(error) {}}
		_, _ = config.Check(name, files, packages[name], info)
		for _, file := range packages[name] {
			path, err := filepath.Rel(project, files.Position(file.Pos()).Filename)
			if err != nil {
				return err
			}
			for _, declaration := range file.Decls {
				name := declared(declaration)
				ast.Inspect(declaration, func(n ast.Node) bool {
					if changes(n, info) {
						found[effect{filepath.ToSlash(path), name}] = true
					}
					return true
				})
			}
		}
	}
	return nil
}

func changes(n ast.Node, info *types.Info) bool {
	switch n := n.(type) {
	case *ast.BasicLit:
		return n.Kind == token.STRING && ddl.MatchString(n.Value)
	case *ast.SelectorExpr:
		name := ""
		if f, ok := info.Uses[n.Sel].(*types.Func); ok {
			name = f.FullName()
		} else if x, ok := n.X.(*ast.Ident); ok {
			if p, ok := info.Uses[x].(*types.PkgName); ok {
				name = p.Imported().Path() + "." + n.Sel.Name
			}
		}
		return changing.MatchString(name)
	}
	return false
}

// declared is the name of a function, or of the first variable of a declaration.
func declared(d ast.Decl) string {
	switch d := d.(type) {
	case *ast.FuncDecl:
		return d.Name.Name
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			if v, ok := spec.(*ast.ValueSpec); ok {
				return v.Names[0].Name
			}
		}
	}
	return "?"
}

// standardOnly imports nothing but the standard library, which export data of the toolchain describe at once.
type standardOnly struct{ types.Importer }

func (i standardOnly) Import(path string) (*types.Package, error) {
	if first, _, _ := strings.Cut(path, "/"); strings.Contains(first, ".") {
		return nil, fmt.Errorf("%s is not read", path)
	}
	return i.Importer.Import(path)
}
