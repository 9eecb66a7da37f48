package main

import (
	"fmt"
	"go/ast"
	"go/format"
	"os"
	"path/filepath"
	"strings"

	"go.yaml.in/yaml/v3"
)

// policy are the roles and bindings of RBAC that a cluster begins with, from the files
// against which upstream tests its tables.
func policy(r *release) (facts, error) {
	files, err := filepath.Glob(r.file("plugin/pkg/auth/authorizer/rbac/bootstrappolicy/testdata/*.yaml"))
	if err != nil {
		return nil, err
	}
	all := facts{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var list struct{ Items []map[string]any }
		if err := yaml.Unmarshal(text, &list); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		for _, item := range list.Items {
			metadata, _ := item["metadata"].(map[string]any)
			out, err := yaml.Marshal(item)
			if err != nil {
				return nil, err
			}
			name := fmt.Sprintf("%v %v", item["kind"], metadata["name"])
			if namespace, ok := metadata["namespace"]; ok {
				name += fmt.Sprintf(" in %v", namespace)
			}
			all[name+" ("+filepath.Base(file)+")"] = string(out)
		}
	}
	return all, nil
}

// bootstrapObjects has the source of what upstream makes the other objects of.
func bootstrapObjects(r *release) (facts, error) {
	all := facts{}
	for _, path := range []string{
		"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap",
		"k8s.io/kubernetes/pkg/apis/scheduling/v1",
		"k8s.io/kubernetes/pkg/controlplane/controller/systemnamespaces",
		"k8s.io/kubernetes/pkg/controlplane/controller/defaultservicecidr",
	} {
		p, err := r.load(path)
		if err != nil {
			return nil, err
		}
		if p == nil {
			continue
		}
		for _, file := range p.files {
			name := filepath.Base(p.set.File(file.Pos()).Name())
			if strings.HasPrefix(name, "zz_generated") {
				continue
			}
			all[path+"/"+name] = block(p, file)
		}
	}
	return all, nil
}

// block returns a declaration or file as gofmt prints it.
func block(p *pkg, node ast.Node) string {
	var out strings.Builder
	if err := format.Node(&out, p.set, node); err != nil {
		return err.Error()
	}
	return out.String()
}
