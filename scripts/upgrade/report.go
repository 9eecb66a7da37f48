package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	goversion "go/version"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"

	"github.com/karve-k8s/karve/server/deviations/mirrors"
)

// watched are files and directories of upstream whose difference the report has, too.
var watched = []string{
	"k8s.io/kubernetes/pkg/features/kube_features.go",
	"k8s.io/apiserver/pkg/features/kube_features.go",
	"k8s.io/kubernetes/pkg/kubeapiserver/options/plugins.go",
	"k8s.io/kubernetes/pkg/controlplane/instance.go",
	"k8s.io/kubernetes/cmd/kube-controller-manager/names/controller_names.go",
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy/testdata",
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap",
}

// report prints how two versions differ in what Karve repeats, replaces or relies on.
func report(ctx context.Context, out io.Writer, from, to string) error {
	before, err := newRelease(ctx, from)
	if err != nil {
		return err
	}
	after, err := newRelease(ctx, to)
	if err != nil {
		return err
	}
	minor := regexp.MustCompile(`^v(\d+\.\d+)`).FindStringSubmatch(to)[1]
	fmt.Fprintf(out, "\n# Kubernetes %s → %s\n\nRead the urgent upgrade notes: https://github.com/kubernetes/kubernetes/blob/master/CHANGELOG/CHANGELOG-%s.md\n", from, to, minor)
	fmt.Fprint(out, "\n## Functions: change Karve's file if it has to follow, then the hash in server/deviations/mirrors\n")
	for i, m := range mirrors.All {
		if slices.ContainsFunc(mirrors.All[:i], func(o mirrors.Mirror) bool { return o.Package == m.Package && o.Function == m.Function }) {
			continue
		}
		if err := difference(ctx, out, before, after, m.Package, m.Function, m.Ours); err != nil {
			return err
		}
	}
	fmt.Fprint(out, "\n## Feature gates, admission plugins, APIs, controllers, objects of a new cluster\n\n")
	for _, path := range watched {
		a, err := before.dir(ctx, path)
		if err != nil {
			return err
		}
		b, err := after.dir(ctx, path)
		if err != nil {
			return err
		}
		if err := diff(ctx, out, a, b); err != nil {
			return err
		}
	}
	return nil
}

// difference prints how a function differs that one of Karve's files relies on.
func difference(ctx context.Context, out io.Writer, before, after *release, path, function, ours string) error {
	a, err := before.source(ctx, path, function)
	if err != nil {
		return err
	}
	b, err := after.source(ctx, path, function)
	if err != nil || a == b {
		return err
	}
	fmt.Fprintf(out, "\n### %s.%s (%s)\n", path, function, ours)
	if b == "" {
		fmt.Fprintln(out, "It is gone or has moved.")
		return nil
	}
	tmp, err := os.MkdirTemp("", "karve-upgrade-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	fileA, fileB := filepath.Join(tmp, before.version), filepath.Join(tmp, after.version)
	if err := errors.Join(os.WriteFile(fileA, []byte(a+"\n"), 0o600), os.WriteFile(fileB, []byte(b+"\n"), 0o600)); err != nil {
		return err
	}
	return diff(ctx, out, fileA, fileB)
}

// diff prints how two files or directories differ.
func diff(ctx context.Context, out io.Writer, a, b string) error {
	cmd := exec.CommandContext(ctx, "git", "diff", "--no-index", "--no-color", "--no-ext-diff", a, b)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 { // they differ
		return nil
	}
	if err != nil {
		return fmt.Errorf("git diff of %s and %s: %w", a, b, err)
	}
	return nil
}

// release is the source of one version of Kubernetes in the module cache.
type release struct {
	version  string
	requires map[string]string // path of a module → its version
	dirs     map[string]string // path of a module → its directory
}

func newRelease(ctx context.Context, version string) (*release, error) {
	mod, err := upstreamMod(ctx, version)
	if err != nil {
		return nil, err
	}
	r := &release{version: version, requires: required(mod), dirs: map[string]string{}}
	r.requires[kubernetes] = version
	return r, nil
}

func upstreamMod(ctx context.Context, version string) (*modfile.File, error) {
	dir, err := download(ctx, kubernetes, version)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "go.mod")
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	mod, err := modfile.Parse(file, text, nil)
	if err == nil && mod.Go != nil && goversion.Compare("go"+mod.Go.Version, runtime.Version()) > 0 {
		return nil, fmt.Errorf("version %s of Kubernetes needs Go %[2]s: set GOTOOLCHAIN=go%[2]s", version, mod.Go.Version)
	}
	return mod, err
}

// dir returns where a package, or a file, of the release is.
func (r *release) dir(ctx context.Context, path string) (string, error) {
	module := path
	for r.requires[module] == "" {
		slash := strings.LastIndexByte(module, '/')
		if slash < 0 {
			return "", fmt.Errorf("no module of Kubernetes %s has %s", r.version, path)
		}
		module = module[:slash]
	}
	if r.dirs[module] == "" {
		version := r.requires[module]
		if version == "v0.0.0" {
			version = staging(r.version)
		}
		dir, err := download(ctx, module, version)
		if err != nil {
			return "", err
		}
		r.dirs[module] = dir
	}
	return r.dirs[module] + strings.TrimPrefix(path, module), nil
}

// source returns the source of a function or variable, or nothing if it is gone.
func (r *release) source(ctx context.Context, path, name string) (string, error) {
	dir, err := r.dir(ctx, path)
	if err != nil {
		return "", err
	}
	_, source, err := mirrors.Find(dir, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil // the whole package is gone
	}
	return source, err
}

func download(ctx context.Context, module, version string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", module+"@"+version)
	out, failed := cmd.Output()
	var m struct{ Dir, Error string }
	if err := json.Unmarshal(out, &m); err != nil || m.Error != "" || failed != nil {
		return "", fmt.Errorf("%s %s is not available: %s", module, version, strings.Join(slices.Compact([]string{m.Error, fmt.Sprint(failed)}), ": "))
	}
	return m.Dir, nil
}
