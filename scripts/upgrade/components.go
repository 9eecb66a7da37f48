package main

import (
	"encoding/json"
	"fmt"
	"go/ast"
	"os"
	"path"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// gates are the feature gates with their state at the release's own version, from the list
// that upstream generates and verifies, and from client-go, which the list leaves out.
func gates(r *release) (facts, error) {
	text, err := os.ReadFile(r.file("test/compatibility_lifecycle/reference/versioned_feature_list.yaml"))
	if err != nil {
		return nil, err
	}
	var list []struct {
		Name           string
		VersionedSpecs []struct {
			Default       bool
			LockToDefault bool   `yaml:"lockToDefault"`
			PreRelease    string `yaml:"preRelease"`
			Version       string
		} `yaml:"versionedSpecs"`
	}
	if err := yaml.Unmarshal(text, &list); err != nil {
		return nil, err
	}
	all := facts{}
	for _, gate := range list {
		if len(gate.VersionedSpecs) == 0 {
			continue
		}
		spec := gate.VersionedSpecs[len(gate.VersionedSpecs)-1]
		stage, state := spec.PreRelease, "off"
		if stage == "" {
			stage = "GA"
		}
		if spec.Default {
			state = "on"
		}
		if spec.LockToDefault {
			state += ", locked"
		}
		all[gate.Name] = fmt.Sprintf("%s, %s (since %s)", stage, state, spec.Version)
	}
	return all, r.clientGates(all)
}

// clientGates adds the gates of client-go, with the source of their newest state.
func (r *release) clientGates(all facts) error {
	p, err := r.load("k8s.io/client-go/features")
	if err != nil || p == nil {
		return err
	}
	for _, v := range p.values {
		list, ok := v.expr.(*ast.CompositeLit)
		if !ok {
			continue
		}
		for _, element := range list.Elts {
			pair, ok := element.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			name, ok := r.text(p, v.file, pair.Key)
			specs, isList := pair.Value.(*ast.CompositeLit)
			if ok && isList && len(specs.Elts) > 0 {
				all[name] = strings.Trim(code(p, specs.Elts[len(specs.Elts)-1]), "{}") + " (client-go)"
			}
		}
	}
	return nil
}

// controllers are those that the controller manager knows.
func controllers(r *release) (facts, error) {
	p, err := r.load("k8s.io/kubernetes/cmd/kube-controller-manager/app")
	if err != nil || p == nil {
		return nil, err
	}
	all := facts{}
	for _, file := range p.files {
		ast.Inspect(file, func(n ast.Node) bool {
			literal, ok := n.(*ast.CompositeLit)
			if !ok {
				return true
			}
			if kind, ok := literal.Type.(*ast.Ident); !ok || kind.Name != "ControllerDescriptor" {
				return true
			}
			name := ""
			var rest []string
			for _, element := range literal.Elts {
				field, ok := element.(*ast.KeyValueExpr)
				if !ok {
					continue
				}
				switch key := code(p, field.Key); key {
				case "name":
					name, _ = r.text(p, file, field.Value)
				case "constructor":
				default:
					rest = append(rest, key+": "+code(p, field.Value))
				}
			}
			if name != "" {
				all[name] = strings.Join(rest, "; ")
			}
			return true
		})
	}
	return all, nil
}

// admissionPlugins are those that the API server knows, in their order.
func admissionPlugins(r *release) (facts, error) {
	p, err := r.load("k8s.io/kubernetes/pkg/kubeapiserver/options")
	if err != nil || p == nil {
		return nil, err
	}
	ordered, ok := p.values["AllOrderedPlugins"]
	if !ok {
		return nil, nil
	}
	on := map[string]bool{}
	for _, file := range p.files {
		for _, declaration := range file.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if !ok || f.Name.Name != "DefaultOffAdmissionPlugins" {
				continue
			}
			ast.Inspect(f, func(n ast.Node) bool {
				if selector, ok := n.(*ast.SelectorExpr); ok && selector.Sel.Name == "PluginName" {
					name, _ := r.text(p, file, selector)
					on[name] = true
				}
				return true
			})
		}
	}
	all := facts{}
	before := "first"
	for _, element := range ordered.expr.(*ast.CompositeLit).Elts {
		name, ok := r.text(p, ordered.file, element)
		if !ok {
			name = code(p, element)
		}
		state := "off"
		if on[name] {
			state = "on"
		}
		all[name] = state + " by default, " + before
		before = "after " + name
	}
	return all, nil
}

// apiVersions are the API versions that the API server knows, and whether they are enabled.
func apiVersions(r *release) (facts, error) {
	p, err := r.load("k8s.io/kubernetes/pkg/controlplane")
	if err != nil || p == nil {
		return nil, err
	}
	all := facts{}
	for name, v := range p.values {
		lower := strings.ToLower(name)
		list, ok := v.expr.(*ast.CompositeLit)
		if !ok || !strings.HasSuffix(lower, "bydefault") && !strings.Contains(lower, "legacy") {
			continue
		}
		state := "off by default"
		if strings.Contains(lower, "enabledbydefault") {
			state = "on by default"
		}
		for _, element := range list.Elts {
			all[versionOf(v.file, p, element)] = state + " (" + name + ")"
		}
	}
	return all, nil
}

// versionOf returns an expression like storagev1.SchemeGroupVersion as storage/v1.
func versionOf(file *ast.File, p *pkg, e ast.Expr) string {
	text := code(p, e)
	name, rest, ok := strings.Cut(text, ".")
	if !ok {
		return text
	}
	from := importPath(file, name)
	if from == "" {
		return text
	}
	version := path.Base(path.Dir(from)) + "/" + path.Base(from)
	if rest = strings.TrimPrefix(rest, "SchemeGroupVersion"); rest != "" {
		version += " " + rest
	}
	return version
}

// priorities are the versions of each group in the order of preference.
func priorities(r *release) (facts, error) {
	packages, err := r.all()
	if err != nil {
		return nil, err
	}
	all := facts{}
	for _, p := range packages {
		if !strings.HasSuffix(p.path, "/install") {
			continue
		}
		for _, file := range p.files {
			ast.Inspect(file, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok {
					return true
				}
				if method, ok := call.Fun.(*ast.SelectorExpr); ok && method.Sel.Name == "SetVersionPriority" {
					var versions []string
					for _, argument := range call.Args {
						versions = append(versions, path.Base(versionOf(file, p, argument)))
					}
					all[strings.TrimSuffix(p.path, "/install")] = strings.Join(versions, " ")
				}
				return true
			})
		}
	}
	return all, nil
}

// apiResources are the resources in upstream's discovery documents.
func apiResources(r *release) (facts, error) {
	text, err := os.ReadFile(r.file("api/discovery/aggregated_v2.json"))
	if err != nil {
		return nil, err
	}
	var discovery struct {
		Items []struct {
			Metadata struct{ Name string }
			Versions []struct {
				Version   string
				Resources []struct {
					Resource, Scope string
					Verbs           []string
					Subresources    []struct{ Subresource string }
				}
			}
		}
	}
	if err := json.Unmarshal(text, &discovery); err != nil {
		return nil, err
	}
	all := facts{}
	for _, group := range discovery.Items {
		for _, version := range group.Versions {
			for _, resource := range version.Resources {
				var parts []string
				for _, sub := range resource.Subresources {
					parts = append(parts, sub.Subresource)
				}
				slices.Sort(parts)
				text := resource.Scope + ": " + strings.Join(resource.Verbs, " ")
				if len(parts) > 0 {
					text += "; subresources " + strings.Join(parts, " ")
				}
				all[group.Metadata.Name+"/"+version.Version+" "+resource.Resource] = text
			}
		}
	}
	return all, nil
}
