package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
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

// readCRDs downloads the modules, and returns their CustomResourceDefinitions.
func readCRDs(ctx context.Context) (all []crd, err error) {
	for _, m := range crdModules {
		answer, err := exec.CommandContext(ctx, "go", "mod", "download", "-json", m.module).Output()
		var module struct{ Dir, Error string }
		if err := errors.Join(json.Unmarshal(answer, &module), err); err != nil {
			return nil, fmt.Errorf("go mod download %s: %s: %w", m.module, module.Error, err)
		}
		err = filepath.WalkDir(filepath.Join(module.Dir, m.dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".yaml" {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			var c crd
			c.body, err = yaml.YAMLToJSON(text)
			if err = errors.Join(err, json.Unmarshal(c.body, &c)); err != nil || c.Spec.Names.Kind == "" {
				return fmt.Errorf("%s is no CustomResourceDefinition: %v", path, err)
			}
			all = append(all, c)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// contains returns an error that names a kind of the CustomResourceDefinitions which a document does not
// have. written is how it writes a kind.
func contains(document []byte, all []crd, written func(group, version, kind string) string) error {
	for _, c := range all {
		for _, v := range c.Spec.Versions {
			if v.Served && !bytes.Contains(document, []byte(written(c.Spec.Group, v.Name, c.Spec.Names.Kind))) {
				return fmt.Errorf("%s of %s/%s is not served", c.Spec.Names.Kind, c.Spec.Group, v.Name)
			}
		}
	}
	return nil
}

// inDiscovery is how an aggregated discovery document names a kind.
func inDiscovery(group, version, kind string) string {
	return fmt.Sprintf(`"responseKind":{"group":%q,"version":%q,"kind":%q}`, group, version, kind)
}

// definition is the name of a kind's type in OpenAPI, such as io.kyverno.v1.Policy.
func definition(group, version, kind string) string {
	parts := strings.Split(group, ".")
	slices.Reverse(parts)
	return strings.Join(append(parts, version, kind), ".")
}
