package server_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/server"
)

// manifest is a ConfigMap as a manifest.
func manifest(namespace, name, value string) string {
	return fmt.Sprintf("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s, namespace: '%s'}\ndata: {key: '%s'}\n", name, namespace, value)
}

const widgets = `apiVersion: example.com/v1
kind: Widget
metadata: {name: one}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.example.com}
spec:
  group: example.com
  names: {kind: Widget, plural: widgets}
  scope: Namespaced
  versions:
  - {name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}
`

// place writes a file of manifests as an editor does: another file takes its name.
func place(t *testing.T, dir, name, text string) {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path+"~", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+"~", path); err != nil {
		t.Fatal(err)
	}
}

// has waits until a ConfigMap has a value. Without one, it must not exist.
func (c *cluster) has(t *testing.T, namespace, name, value string) {
	t.Helper()
	eventually.Nil(t, fmt.Sprintf("ConfigMap %s/%s has %q", namespace, name, value), func() error {
		found, err := c.CoreV1().ConfigMaps(namespace).Get(t.Context(), name, metav1.GetOptions{})
		if value == "" && apierrors.IsNotFound(err) {
			return nil
		}
		if err == nil && (value == "" || found.Data["key"] != value) {
			err = fmt.Errorf("got %v; log:\n%s", found.Data, c.log)
		}
		return err
	})
}

// files returns the state of each file, as karve status has it.
func (c *cluster) files(t *testing.T) map[string]control.Manifest {
	t.Helper()
	client := control.New(c.dir)
	defer client.Close()
	all, err := client.Manifests(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]control.Manifest{}
	for _, f := range all.Files {
		out[f.File] = f
	}
	return out
}

// run runs a server on a directory, until the function that it returns is called.
func run(t *testing.T, dir string) (*cluster, func()) {
	t.Helper()
	c, err := launch(dir, nil)
	if err != nil {
		t.Fatal(err)
	}
	stopped := false
	stop := func() {
		if stopped = true; c.stop() != nil {
			t.Errorf("%v; log:\n%s", c.err, c.log)
		}
	}
	t.Cleanup(func() {
		if !stopped {
			stop()
		}
	})
	return c, stop
}

func TestManifestsFollowTheirFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a control plane of its own")
	}
	data := t.TempDir()
	dir := filepath.Join(data, "manifests")
	place(t, dir, "a.yaml", manifest("", "plain", "1")+"---\n"+manifest("shop", "goods", "1"))
	place(t, dir, "b.yaml", widgets)
	place(t, dir, "c/namespace.json", `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}`)
	place(t, dir, "d/kustomization.yaml", "namespace: shop\nresources: [made.yaml]\n")
	place(t, dir, "d/made.yaml", manifest("", "made", "1"))
	place(t, dir, "broken.yaml", manifest("", "unseen", "1")+"---\nkind: ConfigMap\n")
	place(t, dir, "kept.yaml", manifest("", "kept", "1"))
	place(t, dir, "half.yaml", manifest("", "half", "1")+"---\n"+manifest("", "rest", "1"))
	place(t, dir, "refused.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: refused}\ndatum: {}\n---\n"+manifest("", "beside", "1"))
	for name, value := range map[string]string{"number": "{a: 4815162342}", "list": "{a: [4815162342]}", "text": "'a 4815162342'", "block": "|\n  a\n  4815162342"} {
		place(t, dir, "secret-"+name+".yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: "+name+"}\nstringData: "+value+"\n")
	}

	c, stop := run(t, data)
	c.has(t, "default", "plain", "1")
	c.has(t, "shop", "goods", "1")
	c.has(t, "shop", "made", "1")
	c.has(t, "default", "beside", "1")
	widget := c.dynamic.Resource(schema.GroupVersionResource{Group: "example.com", Version: "v1", Resource: "widgets"}).Namespace("default")
	eventually.Nil(t, "the custom resource", func() error {
		_, err := widget.Get(t.Context(), "one", metav1.GetOptions{})
		return err
	})
	found, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "plain", metav1.GetOptions{})
	if err != nil || !slices.ContainsFunc(found.ManagedFields, func(f metav1.ManagedFieldsEntry) bool {
		return f.Manager == "karve-manifests" && f.Operation == metav1.ManagedFieldsOperationApply
	}) {
		t.Errorf("managers: got %v, %v", found.ManagedFields, err)
	}
	eventually.Nil(t, "the states of the files", func() error {
		all := c.files(t)
		for name, want := range map[string]string{
			"a.yaml": "applied, 2: []", "b.yaml": "applied, 2: []", "c/namespace.json": "applied, 1: []", "d/": "applied, 1: []", "kept.yaml": "applied, 1: []",
			"broken.yaml":        "failed, 0: [document 2: apiVersion is missing, or no text]",
			"refused.yaml":       "failed, 1: [document 1: ConfigMap refused: ",
			"secret-number.yaml": "failed, 0: [document 1: Secret number: ", "secret-list.yaml": "failed, 0: [document 1: Secret list: ",
			"secret-text.yaml": "failed, 0: [document 1: Secret text: ", "secret-block.yaml": "failed, 0: [document 1: Secret block: ",
		} {
			f := all[name]
			if strings.Contains(fmt.Sprint(f.Problems), "4815162342") {
				t.Errorf("%s: the state has a secret: %s", name, f.Problems)
			}
			if got := fmt.Sprintf("%s, %d: %s", f.State, f.Objects, f.Problems); !strings.HasPrefix(got, want) {
				return fmt.Errorf("%s: got %s, want %s", name, got, want)
			}
		}
		return nil
	})
	c.has(t, "default", "unseen", "")

	if strings.Contains(fmt.Sprint(c.log), "4815162342") {
		t.Errorf("the log has a secret:\n%s", c.log)
	}

	// A change, an object less, an object of somebody else, a move, a file that breaks, and files that go.
	create(t, c.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Data: map[string]string{"key": "0"}})
	moved := uid(t, c, "plain")
	place(t, dir, "z.yaml", manifest("default", "plain", "2")+"---\n"+manifest("", "theirs", "1"))
	place(t, dir, "a.yaml", manifest("shop", "goods", "2"))
	place(t, dir, "d/made.yaml", manifest("", "made", "2"))
	place(t, dir, "kept.yaml", "{")
	place(t, dir, "half.yaml", manifest("", "half", "2")+"---\napiVersion: v1\nkind: ConfigMap\nmetadata: {generateName: rest-}\n")
	remove(t, dir, "b.yaml", "refused.yaml")
	c.has(t, "default", "plain", "2")
	c.has(t, "default", "theirs", "1")
	c.has(t, "default", "half", "2")
	c.has(t, "shop", "goods", "2")
	c.has(t, "shop", "made", "2")
	c.has(t, "default", "beside", "")
	eventually.Nil(t, "the custom resource goes", func() error {
		if _, err := widget.Get(t.Context(), "one", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("got %v", err)
		}
		return nil
	})
	if got := uid(t, c, "plain"); got != moved {
		t.Errorf("an object that moved to another file was made again")
	}
	c.has(t, "default", "kept", "1")
	c.has(t, "default", "rest", "1")
	if got := c.files(t)["half.yaml"]; got.State != control.Failed || got.Objects != 2 || !strings.HasPrefix(fmt.Sprint(got.Problems), "[document 2: ConfigMap: metadata.generateName is") {
		t.Errorf("half.yaml: got %+v", got)
	}

	// What changes while the server is off is done at its start.
	stop()
	remove(t, dir, "z.yaml")
	place(t, dir, "a.yaml", manifest("shop", "goods", "3"))
	c, stop = run(t, data)
	c.has(t, "shop", "goods", "3")
	c.has(t, "default", "plain", "")
	c.has(t, "default", "theirs", "1")
	c.has(t, "default", "kept", "1")
	c.has(t, "default", "rest", "1")

	// Without the directory, all stays; in an empty one, nothing does.
	away := filepath.Join(data, "away")
	if err := os.Rename(dir, away); err != nil {
		t.Fatal(err)
	}
	c.says(t, "what it has made stays", 1)
	c.has(t, "default", "kept", "1")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	c.has(t, "default", "kept", "")
	c.has(t, "default", "rest", "")
	stop()
}

func remove(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
}

func uid(t *testing.T, c *cluster, name string) string {
	t.Helper()
	found, err := c.CoreV1().ConfigMaps("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return string(found.UID)
}

// Of several servers, the one that leads applies the files; another goes on when it stops.
func TestOneOfSeveralServersAppliesManifests(t *testing.T) {
	_, socket := sharedStore(t)
	dir := t.TempDir()
	place(t, dir, "a.yaml", manifest("", "shared", "1"))
	configure := func(c *server.Config) {
		c.ManifestsDir = dir
		times(c, "600s", "500s", "300s")
	}
	first, _ := sharing(t, socket, "192.0.2.1", nil, configure)
	second, _ := sharing(t, socket, "192.0.2.2", first, configure)
	const applied = "manifests: a.yaml: applied"
	first.says(t, applied, 1)
	second.says(t, "leads and runs the controllers: this server waits until it stops", 1)
	place(t, dir, "a.yaml", manifest("", "shared", "2"))
	second.has(t, "default", "shared", "2")
	first.says(t, applied, 2)
	second.says(t, applied, 0)
	first.end(t)
	second.says(t, applied, 1)
	place(t, dir, "a.yaml", manifest("", "shared", "3"))
	second.has(t, "default", "shared", "3")
	second.end(t)
}
