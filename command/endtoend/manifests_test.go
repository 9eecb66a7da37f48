package endtoend

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/control"
)

// karve manifests applies files, says which have failed, and deletes only when it is told to.
func TestManifests(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), "--disable-scheduler")
	dir := filepath.Join(p.dir, "manifests")
	place := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	manifests := func(args ...string) outcome {
		t.Helper()
		return finish(t, command(t, "karve", append(append([]string{"manifests"}, args...), "--data-dir", p.dir)...))
	}
	want := func(got outcome, code int, texts ...string) {
		t.Helper()
		if got.code != code {
			t.Errorf("exit code %d, want %d", got.code, code)
		}
		wantIn(t, got.stdout+got.stderr, texts...)
	}

	want(manifests("apply"), 0, "no files in "+dir)
	place("shop.yaml", "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n---\napiVersion: v1\nkind: ConfigMap\nmetadata: {name: a, namespace: shop}\n")
	place("b.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: b}\n")
	want(manifests("apply"), 0, "shop.yaml: applied, objects: 2", "b.yaml: applied, objects: 1")
	want(manifests("prune"), 0, "there is nothing to delete")
	place("c.yaml", "{")
	want(manifests("apply"), 1, "c.yaml: failed", "b.yaml: applied")
	want(manifests("prune", "--yes", "--all"), 1, "nothing is deleted while a file has a problem", "c.yaml: ")
	for _, name := range []string{"c.yaml", "shop.yaml"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	want(manifests("prune", "--dry-run"), 0, "OBJECT", "Namespace shop", "1 object", "ConfigMap shop/a")
	want(manifests("prune"), 1, "OBJECT", "Namespace shop", "--yes for deleting 2 objects")
	wantIn(t, finish(t, command(t, "karve", "status", "--data-dir", p.dir)).stdout, "2 objects are in no file any more: ConfigMap shop/a, Namespace shop (karve manifests prune")
	var deleted []control.Stray
	if got := manifests("prune", "--yes", "-o", "json"); got.code != 0 || json.Unmarshal([]byte(got.stdout), &deleted) != nil || len(deleted) != 2 || deleted[1].Object != "Namespace shop" || deleted[1].Problem != "" {
		t.Errorf("got %+v", got)
	}
	if got := manifests("prune", "--dry-run", "-o", "json"); got.code != 0 || strings.TrimSpace(got.stdout) != "[]" {
		t.Errorf("got %+v, want an empty list", got)
	}
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	want(manifests("prune", "--yes"), 1, "no file in "+dir+" describes an object", "--all")
	want(manifests("prune", "--yes", "--all"), 0, "ConfigMap default/b", "deleted")

	p.stop()
	want(manifests("apply"), 1, "no server runs in "+p.dir)
}
