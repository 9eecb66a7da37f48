package mirrors

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
)

func TestMirrorsAreUpstreams(t *testing.T) {
	dirs := directories(t)
	for _, m := range All {
		if _, err := os.Stat(filepath.Join("..", "..", "..", m.Ours)); err != nil {
			t.Errorf("%s %s: its mirror has moved: %v", m.Package, m.Function, err)
		}
		file, source, err := Find(dirs[m.Package], m.Function)
		if err != nil {
			t.Fatal(err)
		}
		if source == "" {
			t.Errorf("upstream changed, compare %s: %s has no %s any more", m.Ours, m.Package, m.Function)
			continue
		}
		if got := Hash(source); got != m.Hash {
			t.Errorf("upstream changed, compare %s with %s of %s; then replace the hash %q by %q", m.Ours, m.Function, file, m.Hash, got)
		}
	}
}

// directories returns where the packages are that are mirrored.
func directories(t *testing.T) map[string]string {
	t.Helper()
	args := []string{"list", "-json=ImportPath,Dir"}
	for _, m := range All {
		if !slices.Contains(args, m.Package) {
			args = append(args, m.Package)
		}
	}
	list := exec.CommandContext(t.Context(), "go", args...)
	list.Stderr = os.Stderr
	out, err := list.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	dirs := map[string]string{}
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Dir string }
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return dirs
		} else if err != nil {
			t.Fatal(err)
		}
		dirs[p.ImportPath] = p.Dir
	}
}

// The controllers' informer keeps the data of two ConfigMaps (forgetData in server/controllers/informers.go), for
// these controllers.
func TestControllersThatReadConfigMaps(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(directories(t)[controllerApp], "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("got %d files of kube-controller-manager, %v", len(files), err)
	}
	var readers []string
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(text, []byte(".Core().V1().ConfigMaps()")) {
			readers = append(readers, filepath.Base(file))
		}
	}
	if want := []string{"bootstrap.go", "certificates.go"}; !slices.Equal(readers, want) {
		t.Errorf("ConfigMaps are read by controllers in %v, want %v: does another one need their data?", readers, want)
	}
}
