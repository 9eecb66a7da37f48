package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strings"
)

// components are the programs of Kubernetes that Karve runs, and the packages they begin in.
var components = []struct{ name, root string }{
	{"apiserver", "k8s.io/kubernetes/cmd/kube-apiserver/app"},
	{"controllers", "k8s.io/kubernetes/cmd/kube-controller-manager/app"},
	{"scheduler", "k8s.io/kubernetes/cmd/kube-scheduler/app"},
}

// all returns the packages that the components link, each once.
func (r *release) all() ([]*pkg, error) {
	var roots []string
	for _, c := range components {
		roots = append(roots, c.root)
	}
	return r.linked(roots...)
}

// Methods of pflag.FlagSet that define a flag. The name is the second argument of those with
// Var in their name, and the first one of the others; a shorthand follows it with P.
var (
	flagVar   = regexp.MustCompile(`^\w*Var(P|PF)?$`)
	flagValue = regexp.MustCompile(`^(?:Bool|Count|Duration|Float\d\d|Int|Int\d+|Uint|Uint\d+|IP|IPNet|IPMask|String|StringArray|StringTo\w+|\w+Slice)(P)?$`)
)

// flags are the flags that the linked packages define: their default and their help.
func flags(r *release) (facts, error) {
	all := facts{}
	members := map[string][]string{}
	for _, c := range components {
		packages, err := r.linked(c.root)
		if err != nil {
			return nil, err
		}
		for _, p := range packages {
			members[p.path] = append(members[p.path], c.name)
		}
	}
	packages, err := r.all()
	if err != nil {
		return nil, err
	}
	for _, p := range packages {
		for _, file := range p.files {
			if !imports(file, "github.com/spf13/pflag") && !imports(file, "k8s.io/component-base/cli/flag") {
				continue
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				r.flag(all, p, file, call, strings.Join(members[p.path], ","))
				return true
			})
		}
	}
	return all, nil
}

// flag adds the flag that a call defines, or marks as deprecated or hidden.
func (r *release) flag(all facts, p *pkg, file *ast.File, call *ast.CallExpr, components string) {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return
	}
	key := func(e ast.Expr) string {
		name, ok := r.text(p, file, e)
		if !ok {
			name = code(p, e) // computed: the expression stands for it
		}
		return fmt.Sprintf("--%s (%s, %s)", name, components, p.path)
	}
	if (method.Sel.Name == "MarkDeprecated" || method.Sel.Name == "MarkHidden") && len(call.Args) > 0 {
		what := "hidden"
		if method.Sel.Name == "MarkDeprecated" && len(call.Args) == 2 {
			text, _ := r.text(p, file, call.Args[1])
			what = "deprecated: " + text
		}
		all[key(call.Args[0])] += " [" + what + "]"
		return
	}
	at := 1
	m := flagVar.FindStringSubmatch(method.Sel.Name)
	if m == nil {
		at = 0
		if m = flagValue.FindStringSubmatch(method.Sel.Name); m == nil {
			return
		}
	}
	rest := at + 1
	if m[1] != "" {
		rest++
	}
	if len(call.Args) < rest+1 || len(call.Args) > rest+2 {
		return
	}
	help := call.Args[len(call.Args)-1]
	if name, ok := call.Args[at].(*ast.BasicLit); ok && name.Kind != token.STRING {
		return
	}
	if _, isText := r.text(p, file, call.Args[at]); !isText && !strings.Contains(code(p, help), `"`) {
		return
	}
	description := ""
	if len(call.Args) == rest+2 {
		description = "default " + code(p, call.Args[rest]) + "; "
	}
	text, ok := r.text(p, file, help)
	if !ok {
		text = code(p, help)
	}
	k := key(call.Args[at])
	all[k] = description + strings.Join(strings.Fields(text), " ") + all[k]
}

var (
	constructor = regexp.MustCompile(`^New\w*Options$|^New\w*Config$|^NewDefault\w+$`)
	defaulting  = regexp.MustCompile(`^(SetDefaults_|RecommendedDefault)\w+|^(setDefaults|applyDefaults)\w*$`)
)

// defaults has the source of the functions that set defaults: constructors in packages that
// define flags, and the defaulting of component configurations.
func defaults(r *release) (facts, error) {
	packages, err := r.all()
	if err != nil {
		return nil, err
	}
	all := facts{}
	for _, p := range packages {
		options := strings.HasSuffix(p.path, "/options") || strings.HasSuffix(p.path, "/config") && strings.Contains(p.path, "/apiserver/")
		config := strings.Contains(p.path, "config/v1") || strings.HasSuffix(p.path, "/config/v1alpha1")
		if !options && !config {
			continue
		}
		for _, file := range p.files {
			for _, declaration := range file.Decls {
				f, ok := declaration.(*ast.FuncDecl)
				if ok && (options && constructor.MatchString(f.Name.Name) || defaulting.MatchString(f.Name.Name)) {
					all[p.path+"."+f.Name.Name] = block(p, f)
				}
			}
		}
	}
	return all, nil
}
