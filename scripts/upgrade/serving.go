package main

import (
	"fmt"
	"go/ast"
	"regexp"
	"strings"
)

var hookMethod = regexp.MustCompile(`^Add(?:PostStartHook|PreShutdownHook|HealthChecks|ReadyzChecks|LivezChecks|HealthzChecks|BootSequenceHealthChecks)(?:OrDie)?$`)

// hooks are the post-start and pre-shutdown hooks of the API server, and the checks that it adds.
func hooks(r *release) (facts, error) {
	packages, err := r.linked(components[0].root)
	if err != nil {
		return nil, err
	}
	all := facts{}
	for _, p := range packages {
		for _, file := range p.files {
			ast.Inspect(file, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.CallExpr:
					if method, ok := n.Fun.(*ast.SelectorExpr); ok && len(n.Args) > 0 && hookMethod.MatchString(method.Sel.Name) {
						all[r.named(p, file, n.Args[0])] = strings.TrimSuffix(strings.TrimPrefix(method.Sel.Name, "Add"), "OrDie") + " in " + p.path
					}
				case *ast.FuncDecl: // of a storage provider
					if n.Name.Name == "PostStartHook" && n.Recv != nil && n.Body != nil {
						ast.Inspect(n, func(n ast.Node) bool {
							if result, ok := n.(*ast.ReturnStmt); ok && len(result.Results) == 3 {
								all[r.named(p, file, result.Results[0])] = "PostStartHook in " + p.path
							}
							return true
						})
					}
				}
				return true
			})
		}
	}
	return all, nil
}

// named is the text of a constant, or the code of any other expression.
func (r *release) named(p *pkg, file *ast.File, e ast.Expr) string {
	if text, ok := r.text(p, file, e); ok {
		return text
	}
	return code(p, e)
}

var metricOptions = regexp.MustCompile(`^(Counter|Gauge|Histogram|Summary|TimingHistogram)Opts$`)

// metrics are those that the linked packages define: their type, stability and labels.
func metrics(r *release) (facts, error) {
	packages, err := r.all()
	if err != nil {
		return nil, err
	}
	all := facts{}
	for _, p := range packages {
		for _, file := range p.files {
			if !imports(file, "k8s.io/component-base/metrics") {
				continue
			}
			ast.Inspect(file, func(n ast.Node) bool {
				if call, ok := n.(*ast.CallExpr); ok {
					r.metric(all, p, file, call)
				}
				return true
			})
		}
	}
	return all, nil
}

// metric adds the metric that a call makes: NewCounterVec(&CounterOpts{…}, []string{…}) and
// the like, or NewDesc(name, help, labels, …).
func (r *release) metric(all facts, p *pkg, file *ast.File, call *ast.CallExpr) {
	if len(call.Args) == 0 {
		return
	}
	labels := ""
	if method, ok := call.Fun.(*ast.SelectorExpr); ok && method.Sel.Name == "NewDesc" && len(call.Args) >= 5 {
		all[r.metricName(p, file, call.Args[0])] = fmt.Sprintf("custom, %s, labels %s", stability(p, call.Args[len(call.Args)-2]), code(p, call.Args[2]))
		return
	}
	options, ok := call.Args[0].(*ast.UnaryExpr)
	if !ok {
		return
	}
	literal, ok := options.X.(*ast.CompositeLit)
	if !ok {
		return
	}
	kind := ""
	switch t := literal.Type.(type) {
	case *ast.SelectorExpr:
		kind = t.Sel.Name
	case *ast.Ident:
		kind = t.Name
	}
	m := metricOptions.FindStringSubmatch(kind)
	if m == nil {
		return
	}
	if len(call.Args) > 1 {
		labels = ", labels " + code(p, call.Args[1])
	}
	var parts [3]string
	level, more := "ALPHA", ""
	for _, element := range literal.Elts {
		field, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		switch code(p, field.Key) {
		case "Namespace":
			parts[0] = r.named(p, file, field.Value)
		case "Subsystem":
			parts[1] = r.named(p, file, field.Value)
		case "Name":
			parts[2] = r.named(p, file, field.Value)
		case "StabilityLevel":
			level = stability(p, field.Value)
		case "DeprecatedVersion":
			more = ", deprecated since " + r.named(p, file, field.Value)
		}
	}
	name := strings.Trim(strings.Join(parts[:], "_"), "_")
	all[strings.ReplaceAll(name, "__", "_")] = strings.ToLower(m[1]) + ", " + level + labels + more
}

// metricName evaluates a name that BuildFQName may put together.
func (r *release) metricName(p *pkg, file *ast.File, e ast.Expr) string {
	call, ok := e.(*ast.CallExpr)
	if !ok || len(call.Args) != 3 {
		return r.named(p, file, e)
	}
	var parts []string
	for _, argument := range call.Args {
		if part := r.named(p, file, argument); part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "_")
}

func stability(p *pkg, e ast.Expr) string {
	text := code(p, e)
	return text[strings.LastIndexByte(text, '.')+1:]
}

func imports(file *ast.File, path string) bool {
	for _, spec := range file.Imports {
		if literal(spec.Path) == path {
			return true
		}
	}
	return false
}
