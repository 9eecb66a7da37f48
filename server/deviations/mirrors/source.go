package mirrors

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"go/ast"
	"go/build"
	"go/format"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Hash returns what [Mirror.Hash] has for a source that [Find] returned.
func Hash(source string) string {
	sum := sha256.Sum256([]byte(source))
	return hex.EncodeToString(sum[:6])
}

// Find looks in the package of a directory for the declaration of a function, a method
// (Type.name) or a variable. It returns the file and the declaration, formatted and without
// comments; both are empty if there is none. It sees the files that a Linux build uses.
func Find(dir, name string) (file, source string, err error) {
	paths, err := files(dir)
	if err != nil {
		return "", "", err
	}
	for _, file := range paths {
		text, err := os.ReadFile(file)
		if err != nil {
			return "", "", err
		}
		if !bytes.Contains(text, []byte(name[strings.LastIndexByte(name, '.')+1:])) {
			continue // most files need not be parsed
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, text, parser.SkipObjectResolution)
		if err != nil {
			return "", "", err
		}
		for _, declaration := range parsed.Decls {
			if !declares(declaration, name) {
				continue
			}
			var out strings.Builder
			if err := format.Node(&out, set, declaration); err != nil {
				return "", "", err
			}
			return file, out.String(), nil
		}
	}
	return "", "", nil
}

// files returns the Go files of a directory that a Linux build without cgo uses, in order.
func files(dir string) (paths []string, err error) {
	context := build.Default
	context.GOOS, context.GOARCH, context.CgoEnabled = "linux", "amd64", false
	pkg, err := context.ImportDir(dir, 0)
	if err != nil {
		return nil, err
	}
	for _, name := range pkg.GoFiles {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths, nil
}

func declares(declaration ast.Decl, name string) bool {
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		return functionName(d) == name
	case *ast.GenDecl:
		return slices.ContainsFunc(d.Specs, func(spec ast.Spec) bool {
			value, ok := spec.(*ast.ValueSpec)
			return ok && slices.ContainsFunc(value.Names, func(n *ast.Ident) bool { return n.Name == name })
		})
	}
	return false
}

// functionName is that of a function, or Type.name of a method.
func functionName(f *ast.FuncDecl) string {
	if f.Recv == nil {
		return f.Name.Name
	}
	receiver := f.Recv.List[0].Type
	for {
		switch r := receiver.(type) {
		case *ast.StarExpr:
			receiver = r.X
		case *ast.IndexExpr: // of a generic type
			receiver = r.X
		case *ast.IndexListExpr:
			receiver = r.X
		case *ast.Ident:
			return fmt.Sprintf("%s.%s", r.Name, f.Name.Name)
		default:
			return f.Name.Name
		}
	}
}
