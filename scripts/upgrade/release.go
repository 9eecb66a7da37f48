package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
)

// kubernetes is the module from which Karve takes its version. Its staging modules, such as
// k8s.io/apiserver, have the same version with a 0 in front: v0.37.1 belongs to v1.37.1.
const kubernetes = "k8s.io/kubernetes"

// release is the source of one version of Kubernetes.
type release struct {
	version  string
	modules  map[string]string // path of a module → its directory
	requires map[string]string // path of a module → the version in k8s.io/kubernetes' go.mod
	packages map[string]*pkg   // those that were parsed, by import path
}

// download returns a release from the module cache, after it has put there what is missing.
// ours are the versions in Karve's go.mod: a module outside of Kubernetes has the newer of
// both versions, as in a build.
func download(ctx context.Context, version string, ours map[string]string) (*release, error) {
	staging, err := stagingVersion(version)
	if err != nil {
		return nil, err
	}
	root, err := downloadModules(ctx, kubernetes+"@"+version)
	if err != nil {
		return nil, err
	}
	r := &release{version: version, modules: root, packages: map[string]*pkg{}}
	mod, err := readGoMod(ctx, root[kubernetes]+"/go.mod")
	if err != nil {
		return nil, err
	}
	r.requires = mod.requires()
	var want []string
	for path, version := range r.requires {
		switch {
		case version == "v0.0.0": // its go.mod replaces a staging module by a directory
			want = append(want, path+"@"+staging)
		case ours[path] != "":
			want = append(want, path+"@"+newer(version, ours[path]))
		}
	}
	slices.Sort(want)
	rest, err := downloadModules(ctx, want...)
	if err != nil {
		return nil, err
	}
	maps.Copy(r.modules, rest)
	return r, nil
}

// dir returns the directory of a package, if it belongs to a module of the release.
func (r *release) dir(path string) (string, bool) {
	for module := path; ; {
		if dir, ok := r.modules[module]; ok {
			return dir + strings.TrimPrefix(path, module), true
		}
		slash := strings.LastIndexByte(module, '/')
		if slash < 0 {
			return "", false
		}
		module = module[:slash]
	}
}

// file returns the path of a file of k8s.io/kubernetes.
func (r *release) file(name string) string { return r.modules[kubernetes] + "/" + name }

// downloadModules returns the directories of modules (path@version).
func downloadModules(ctx context.Context, modules ...string) (map[string]string, error) {
	cmd := exec.CommandContext(ctx, "go", append([]string{"mod", "download", "-json"}, modules...)...)
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	failed := cmd.Run()
	dirs := map[string]string{}
	for decoder := json.NewDecoder(&out); ; {
		var m struct{ Path, Version, Dir, Error string }
		if err := decoder.Decode(&m); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("go mod download: %w", err)
		}
		if m.Error != "" {
			return nil, fmt.Errorf("%s@%s cannot be had: %s", m.Path, m.Version, m.Error)
		}
		dirs[m.Path] = m.Dir
	}
	if failed != nil {
		return nil, fmt.Errorf("go mod download: %w: %s", failed, strings.TrimSpace(complaint.String()))
	}
	return dirs, nil
}

// goMod is what `go mod edit -json` prints.
type goMod struct {
	Module  struct{ Path string }
	Require []struct {
		Path, Version string
		Indirect      bool
	}
	Replace []struct {
		Old, New struct{ Path, Version string }
	}
}

func readGoMod(ctx context.Context, file string) (*goMod, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "edit", "-json", file)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("go mod edit -json %s: %w", file, err)
	}
	var mod goMod
	if err := json.Unmarshal(out, &mod); err != nil {
		return nil, fmt.Errorf("go mod edit -json %s: %w", file, err)
	}
	return &mod, nil
}

func (m *goMod) requires() map[string]string {
	versions := map[string]string{}
	for _, r := range m.Require {
		versions[r.Path] = r.Version
	}
	return versions
}
