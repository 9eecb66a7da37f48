package manifests

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"sigs.k8s.io/kustomize/api/konfig"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/api/types"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/kustomize/kyaml/openapi"
)

// building is held during a build: kustomize has its schema in a global.
var building sync.Mutex

// build returns the objects of the kustomization in a directory, from files below the directory alone.
func build(dir string) ([]object, error) {
	building.Lock()
	defer building.Unlock()
	defer openapi.ResetOpenAPI() // megabytes
	files := &localFiles{FileSystem: filesys.MakeFsOnDisk(), root: dir, kustomizations: map[string]bool{}}
	built, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(files, dir)
	if files.refused != nil { // kustomize says that there is no kustomization
		return nil, files.refused
	}
	if err != nil {
		return nil, err
	}
	text, err := built.AsYaml()
	if err != nil {
		return nil, err
	}
	objects, err := parse(text, false)
	for i := range objects {
		objects[i].where = "" // in what kustomize has made
	}
	return objects, err
}

// localFiles is the file system below a directory. Kustomize fetches what a reference in a kustomization names before it looks
// at the file system, so the kustomizations themselves are checked.
type localFiles struct {
	filesys.FileSystem
	root           string
	kustomizations map[string]bool // by path, without links
	refused        error
}

// CleanedAbs also remembers what a kustomization's name leads to.
func (l *localFiles) CleanedAbs(path string) (filesys.ConfirmedDir, string, error) {
	dir, file, err := l.FileSystem.CleanedAbs(path)
	if err == nil && slices.Contains(konfig.RecognizedKustomizationFileNames(), filepath.Base(path)) {
		l.kustomizations[dir.Join(file)] = true
	}
	return dir, file, err
}

// ReadFile reads a file below the root.
func (l *localFiles) ReadFile(path string) ([]byte, error) {
	text, err := l.read(path)
	if err != nil && l.refused == nil && !errors.Is(err, os.ErrNotExist) {
		l.refused = err
	}
	return text, err
}

func (l *localFiles) read(path string) ([]byte, error) {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return nil, err
	}
	if !within(l.root, real) {
		return nil, fmt.Errorf("%s is outside of the kustomization's directory %s", real, l.root)
	}
	info, err := os.Stat(real)
	if err != nil || info.IsDir() {
		return nil, errors.Join(err, os.ErrNotExist)
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is no regular file", real)
	}
	if err := safe(real, info); err != nil { // it may be hidden
		return nil, err
	}
	text, err := readFile(real)
	if err == nil && (l.kustomizations[path] || slices.Contains(extensions, filepath.Ext(path))) { // other files are data, and stay as they are
		if text, err = plain(text); err == nil {
			err = separate(text)
		}
	}
	if err == nil && l.kustomizations[path] {
		err = local(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	return text, nil
}

// local refuses a kustomization that would fetch something or run a program.
func local(text []byte) error {
	k := &types.Kustomization{}
	if err := k.Unmarshal(text); err != nil {
		return err
	}
	if len(k.Generators)+len(k.Transformers)+len(k.Validators)+len(k.HelmCharts)+len(k.HelmChartInflationGenerator) > 0 || k.HelmGlobals != nil {
		return errors.New("generators, transformers, validators and Helm charts are refused: they could run programs")
	}
	//lint:ignore SA1019 what is deprecated is read all the same
	references := slices.Concat(k.Resources, k.Components, k.Bases, k.Crds, k.Configurations)
	for _, path := range k.OpenAPI {
		references = append(references, path)
	}
	//lint:ignore SA1019 as above
	for _, p := range slices.Concat(k.Patches, k.PatchesJson6902) {
		references = append(references, p.Path)
	}
	//lint:ignore SA1019 as above
	for _, p := range k.PatchesStrategicMerge {
		if !strings.Contains(string(p), "\n") { // otherwise it is the patch
			references = append(references, string(p))
		}
	}
	for _, r := range k.Replacements {
		references = append(references, r.Path)
	}
	sources := func(s types.KvPairSources) {
		references = append(references, slices.Concat(s.FileSources, s.EnvSources, []string{s.EnvSource})...)
	}
	for _, g := range k.ConfigMapGenerator {
		sources(g.KvPairSources)
	}
	for _, g := range k.SecretGenerator {
		sources(g.KvPairSources)
	}
	for _, r := range references {
		// kustomize's forms of a remote reference have a scheme, a user, or GitHub's name.
		if strings.ContainsAny(r, ":@") || strings.HasPrefix(strings.ToLower(r), "github.com") {
			r = r[strings.LastIndex(r, "@")+1:] // without a password
			return fmt.Errorf("%q is refused: a kustomization may only name local files", r)
		}
	}
	return nil
}
