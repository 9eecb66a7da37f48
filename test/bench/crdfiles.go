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
