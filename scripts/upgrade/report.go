package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	goversion "go/version"
	"io"
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
	tmp, err := os.MkdirTemp("", "karve-upgrade-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	for _, version := range []string{from, to} {
		r, err := newRelease(ctx, version)
		if err != nil {
			return err
		}
		if err := r.extract(ctx, filepath.Join(tmp, version)); err != nil {
			return err
		}
	}
	minor := regexp.MustCompile(`^v(\d+\.\d+)`).FindStringSubmatch(to)[1]
	fmt.Fprintf(out, "\n# Kubernetes %s → %s\n\nRead the urgent upgrade notes: https://github.com/kubernetes/kubernetes/blob/master/CHANGELOG/CHANGELOG-%s.md\n", from, to, minor)
	fmt.Fprint(out, "\nFunctions: change Karve's file, which the first line names, if it has to follow, then the hash in server/deviations/mirrors. "+
		"Files: feature gates, admission plugins, APIs, controllers, objects of a new cluster.\n\n")
	cmd := exec.CommandContext(ctx, "git", "diff", "--no-index", "--no-color", "--no-ext-diff", from, to)
	cmd.Dir, cmd.Stdout, cmd.Stderr = tmp, out, os.Stderr
	err = cmd.Run()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == 1 { // they differ
		return nil
	}
	return err
}

// extract writes each function that Karve's files rely on, and what is watched, into a directory.
func (r *release) extract(ctx context.Context, to string) error {
	for _, m := range mirrors.All {
		source, err := r.source(ctx, m.Package, m.Function)
		if err != nil {
			return err
		}
		dir := filepath.Join(to, m.Package)
		text := "// " + m.Ours + "\n" + source + "\n"
		if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, m.Function), []byte(text), 0o600)); err != nil {
			return err
		}
	}
	for _, path := range watched {
		from, err := r.dir(ctx, path)
		if err != nil {
			return err
		}
		file := filepath.Join(to, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		if text, unread := os.ReadFile(from); unread == nil {
			err = os.WriteFile(file, text, 0o600)
		} else {
			err = os.CopyFS(file, os.DirFS(from))
		}
		if err != nil {
			return err
		}
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
	if _, err := os.Stat(dir); err != nil {
		return "", nil // the whole package is gone
	}
	_, source, err := mirrors.Find(dir, name)
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
