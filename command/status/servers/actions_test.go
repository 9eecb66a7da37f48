package servers

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// notAsOwner are the actions that root does not do as the owner of the data directory from the beginning to the end. A new one
// belongs here only with what it does instead: a name in another user's directory must not lead root to any file.
var notAsOwner = map[string]string{
	// What these have to do in a data directory, they do by ownership.Act; the rest is root's own.
	"keys: create":     "a cluster token: writes the file of its argument, and gives it away; a bootstrap token uses the API",
	"keys: rotate":     "reads the files of its options, and reseals as the owner; of Secrets: as status",
	"command: name":    "addons: destination.Act writes the file",
	"command: check":   "validates as the owner, and looks at the machine as root",
	"command: run":     "as server",
	"command: server":  "ownership.Check refuses a directory of another user",
	"command: support": "runs other commands; destination.Act writes",
	"backup: backup":   "place builds as the owner of the data directory, and copies as that of the destination",
	"backup: create":   "as backup",
	"backup: snapshot": "as backup",
	"backup: verify":   "that of backups reads the file of its argument only",
	"backup: restore":  "opens the file of its argument, or withReadable copies it, before",
	"backup: import":   "as restore",
	"backup: migrate":  "asOwnerOf: either end may be another directory",
	"backup: reset":    "opens the file of its argument before",
	"status: apply":    "asks the server",
	"status: prune":    "as apply",
	"status: status":   "readAsOwner",
	"status: wait":     "as status",
	"keys: kubeconfig": "servers.KubeconfigText; --into is a file of root's",
	"keys: renew":      "withStore",
	"keys: rotate-ca":  "reads tokens as root; withStore and ownership.Act do the rest",
	"keys: forget":     "acts as the owner of the directory of the file, which an option may name",
	"keys: status":     "ownFile; the user's configuration and the token are files of options",
	"keys: enable":     "as status",
	"keys: reencrypt":  "as status",
	// These use the API, with what Kubeconfig accepts.
	"backup: name": "", "keys: name": "", "keys: delete": "", "keys: list": "", "kubectl: kubectl": "",
	// These have no data directory, or are about the machine.
	"command: completion": "", "command: envtest-assets": "", "command: help": "", "command: images": "", "command: version": "", "keys: etcd-member": "",
	"command: install": "", "command: uninstall": "", "command: upgrade": "",
	"command: join": "", "command: follow": "", "command: remove": "", "command: status": "",
}

// Each action of a command acts as the owner of the data directory, or is in the list with what it does instead.
func TestRootActsAsOwner(t *testing.T) {
	found := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			for name, as := range actions(file) {
				found[file.Name.Name+": "+name] = found[file.Name.Name+": "+name] || !as
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	var without []string
	for name, asRoot := range found {
		if asRoot {
			without = append(without, name)
		}
	}
	slices.Sort(without)
	if want := slices.Sorted(maps.Keys(notAsOwner)); !slices.Equal(without, want) {
		t.Errorf("without AsOwner are\n%s\nand the list has\n%s", strings.Join(without, "\n"), strings.Join(want, "\n"))
	}
}

// actions returns the names of the commands in a file, and whether they act by AsOwner: those of literals with an Action, and of calls of a function sub
// that makes one.
func actions(file *ast.File) map[string]bool {
	all := map[string]bool{}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			name, action := field(n, "Name"), field(n, "Action")
			if name != nil && action != nil {
				all[unquoted(name)] = isAsOwner(action)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok && f.Name == "sub" {
				all[unquoted(n.Args[0])] = slices.ContainsFunc(n.Args, isAsOwner)
			}
		}
		return true
	})
	return all
}

func field(of *ast.CompositeLit, name string) ast.Expr {
	for _, e := range of.Elts {
		if kv, ok := e.(*ast.KeyValueExpr); ok {
			if key, ok := kv.Key.(*ast.Ident); ok && key.Name == name {
				return kv.Value
			}
		}
	}
	return nil
}

func unquoted(e ast.Expr) string {
	if text, ok := e.(*ast.BasicLit); ok {
		name, _ := strconv.Unquote(text.Value)
		return name
	}
	variable, _ := e.(*ast.Ident)
	return variable.String()
}

func isAsOwner(e ast.Expr) bool {
	call, ok := e.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	return ok && f.Sel.Name == "AsOwner"
}
