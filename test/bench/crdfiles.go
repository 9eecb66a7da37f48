package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// crdModules are Go modules with large CustomResourceDefinitions, and the directories that have
// them. The Go module proxy keeps these versions.
var crdModules = []struct{ module, dir string }{
	{"github.com/crossplane/crossplane/v2@v2.0.2", "cluster/crds"},
	{"github.com/kyverno/kyverno@v1.19.1", "config/crds"},
}

// A crd is a CustomResourceDefinition of a module.
type crd struct {
	Metadata struct{ Name string }
	Spec     struct {
		Group    string
		Names    struct{ Kind string }
		Versions []struct {
			Name   string
			Served bool
		}
	}
	body []byte // in JSON, as kubectl sends it
}

func moduleNames() string {
	var names []string
	for _, m := range crdModules {
		names = append(names, m.module)
	}
	return strings.Join(names, " and ")
}

// readCRDs downloads the modules, and returns their CustomResourceDefinitions.
func readCRDs(ctx context.Context) ([]crd, error) {
	var all []crd
	for _, m := range crdModules {
		dir, err := moduleDir(ctx, m.module)
		if err != nil {
			return nil, err
		}
		of, err := crdsIn(filepath.Join(dir, m.dir))
		if err != nil {
			return nil, fmt.Errorf("read the CustomResourceDefinitions of %s: %w", m.module, err)
		}
		all = append(all, of...)
	}
	return all, nil
}

// moduleDir downloads a module into Go's module cache, and returns its directory there.
func moduleDir(ctx context.Context, module string) (string, error) {
	var stdout bytes.Buffer
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module)
	cmd.Stdout = &stdout
	failed := cmd.Run()
	var answer struct{ Dir, Error string }
	if err := json.Unmarshal(stdout.Bytes(), &answer); err != nil {
		return "", fmt.Errorf("go mod download %s: %w", module, errors.Join(failed, err))
	}
	if answer.Error != "" || failed != nil {
		return "", fmt.Errorf("go mod download %s: %s: %w", module, answer.Error, failed)
	}
	return answer.Dir, nil
}

// crdsIn reads every YAML file below dir.
func crdsIn(dir string) (all []crd, err error) {
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".yaml" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var c crd
		if c.body, err = yaml.YAMLToJSON(text); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := json.Unmarshal(c.body, &c); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if c.Metadata.Name == "" || c.Spec.Names.Kind == "" {
			return fmt.Errorf("%s is no CustomResourceDefinition", path)
		}
		all = append(all, c)
		return nil
	})
	if err == nil && len(all) == 0 {
		err = fmt.Errorf("there is none in %s", dir)
	}
	return all, err
}

// kinds are the kinds that the CustomResourceDefinitions serve, by group/version.
func kinds(all []crd) map[string][]string {
	of := map[string][]string{}
	for _, c := range all {
		for _, v := range c.Spec.Versions {
			if v.Served {
				gv := c.Spec.Group + "/" + v.Name
				of[gv] = append(of[gv], c.Spec.Names.Kind)
			}
		}
	}
	return of
}

// discovered are the kinds in an aggregated discovery document, by group/version.
func discovered(document []byte) (map[string][]string, error) {
	var list struct {
		Items []struct {
			Metadata struct{ Name string }
			Versions []struct {
				Version   string
				Resources []struct{ ResponseKind struct{ Kind string } }
			}
		}
	}
	if err := json.Unmarshal(document, &list); err != nil {
		return nil, fmt.Errorf("read discovery: %w", err)
	}
	found := map[string][]string{}
	for _, group := range list.Items {
		for _, v := range group.Versions {
			for _, r := range v.Resources {
				gv := group.Metadata.Name + "/" + v.Version
				found[gv] = append(found[gv], r.ResponseKind.Kind)
			}
		}
	}
	return found, nil
}

// missing returns an error that names a kind that is not there.
func missing(want map[string][]string, there func(gv, kind string) bool) error {
	for _, gv := range slices.Sorted(maps.Keys(want)) {
		for _, kind := range want[gv] {
			if !there(gv, kind) {
				return fmt.Errorf("%s of %s is not served", kind, gv)
			}
		}
	}
	return nil
}

// definition is the name of a kind's type in OpenAPI, such as io.kyverno.v1.Policy.
func definition(gv, kind string) []byte {
	group, version, _ := strings.Cut(gv, "/")
	parts := strings.Split(group, ".")
	slices.Reverse(parts)
	return []byte(strings.Join(append(parts, version, kind), "."))
}
