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
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/eventually"
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
	fatal(t, os.MkdirAll(filepath.Dir(path), 0o755))
	fatal(t, os.WriteFile(path+"~", []byte(text), 0o600))
	fatal(t, os.Rename(path+"~", path))
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

// asking calls ask with a client of the control socket.
func asking[T any](t *testing.T, c *cluster, ask func(*control.Client) (T, error)) (T, error) {
	t.Helper()
	client := control.New(c.dir)
	defer client.Close()
	return ask(client)
}

// applied applies all files now, and returns what karve status has about them.
func (c *cluster) applied(t *testing.T) (*control.Manifests, map[string]control.Manifest) {
	t.Helper()
	all, err := asking(t, c, func(client *control.Client) (*control.Manifests, error) { return client.ApplyManifests(t.Context()) })
	fatal(t, err)
	if status, err := asking(t, c, func(client *control.Client) (*control.Manifests, error) { return client.Manifests(t.Context()) }); err != nil || len(status.Files) != len(all.Files) {
		t.Errorf("status: got %+v, %v, want %+v", status, err, all)
	}
	out := map[string]control.Manifest{}
	for _, f := range all.Files {
		out[f.File] = f
	}
	return all, out
}

// prune is `karve manifests prune`: with nil, it only asks.
func (c *cluster) prune(t *testing.T, agreed []control.Stray, parameters ...string) (string, []control.Stray, error) {
	t.Helper()
	strays, err := asking(t, c, func(client *control.Client) ([]control.Stray, error) {
		return client.PruneManifests(t.Context(), agreed, parameters...)
	})
	var names []string
	for _, s := range strays {
		names = append(names, fmt.Sprintf("%s %d", s.Object, s.With))
	}
	return strings.Join(names, "\n"), strays, err
}

func TestManifestsFollowTheirFiles(t *testing.T) {
	data := t.TempDir()
	dir := filepath.Join(data, "manifests")
	place(t, dir, "a.yaml", manifest("", "plain", "1")+"---\n"+manifest("shop", "goods", "1"))
	place(t, dir, "b.yaml", widgets)
	place(t, dir, "c/namespace.json", `{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}}`)
	place(t, dir, "d/made.yaml", manifest("shop", "made", "1"))
	place(t, dir, "broken.yaml", manifest("", "unseen", "1")+"---\nkind: ConfigMap\n")
	place(t, dir, "kept.yaml", manifest("", "kept", "1"))
	place(t, dir, "half.yaml", manifest("", "half", "1")+"---\n"+manifest("", "rest", "1"))
	place(t, dir, "refused.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: refused}\ndatum: {}\n---\n"+manifest("", "beside", "1"))
	for name, value := range map[string]string{"number": "{a: 4815162342}", "list": "{a: [4815162342]}", "text": "'a 4815162342'", "block": "|\n  a\n  4815162342", "anchor": "{a: *4815162342}"} {
		place(t, dir, "secret-"+name+".yaml", "apiVersion: v1\nkind: Secret\nmetadata: {name: "+name+"}\nstringData: "+value+"\n")
	}

	c := up(t, data, nil)
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
	_, all := c.applied(t)
	for name, want := range map[string]string{
		"a.yaml": "applied, 2: []", "b.yaml": "applied, 2: []", "c/namespace.json": "applied, 1: []", "d/made.yaml": "applied, 1: []", "kept.yaml": "applied, 1: []",
		"broken.yaml":        "failed, 0: [document 2: apiVersion is missing, or no text]",
		"refused.yaml":       "failed, 1: [document 1: ConfigMap refused: ",
		"secret-number.yaml": "failed, 0: [document 1: Secret number: ", "secret-list.yaml": "failed, 0: [document 1: Secret list: ",
		"secret-text.yaml": "failed, 0: [document 1: Secret text: ", "secret-block.yaml": "failed, 0: [document 1: Secret block: ",
		"secret-anchor.yaml": "failed, 0: [document 1: yaml: unknown anchor …]",
	} {
		f := all[name]
		if strings.Contains(fmt.Sprint(f.Problems), "4815162342") {
			t.Errorf("%s: the state has a secret: %s", name, f.Problems)
		}
		if got := fmt.Sprintf("%s, %d: %s", f.State, f.Objects, f.Problems); !strings.HasPrefix(got, want) {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	c.has(t, "default", "unseen", "")

	if strings.Contains(fmt.Sprint(c.log), "4815162342") {
		t.Errorf("the log has a secret:\n%s", c.log)
	}

	// A change, an object less, an object of somebody else, a move, a file that breaks or is empty, and files that go: all objects stay.
	create(t, c.CoreV1().ConfigMaps("default"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "theirs"}, Data: map[string]string{"key": "0"}})
	moved := uid(t, c, "plain")
	place(t, dir, "z.yaml", manifest("default", "plain", "2")+"---\n"+manifest("", "theirs", "1"))
	place(t, dir, "a.yaml", manifest("shop", "goods", "2"))
	place(t, dir, "d/made.yaml", manifest("shop", "made", "2"))
	place(t, dir, "kept.yaml", "{")
	place(t, dir, "half.yaml", manifest("", "half", "2"))
	place(t, dir, "c/namespace.json", "")
	remove(t, dir, "b.yaml", "refused.yaml")
	c.has(t, "default", "plain", "2")
	c.has(t, "default", "theirs", "1")
	c.has(t, "default", "half", "2")
	c.has(t, "shop", "goods", "2")
	c.has(t, "shop", "made", "2")
	if got := uid(t, c, "plain"); got != moved {
		t.Errorf("an object that moved to another file was made again")
	}
	if whole, files := c.applied(t); len(whole.Strays) > 0 || files["kept.yaml"].State != control.Failed {
		t.Errorf("while a file cannot be read: got %+v, want no objects in no file", whole)
	}
	if names, _, err := c.prune(t, nil, control.All); err == nil || !strings.Contains(err.Error(), "kept.yaml: ") {
		t.Errorf("prune while a file cannot be read: got %s, %v", names, err)
	}

	// What changes while the server is off changes nothing of that.
	c.down(t)
	remove(t, dir, "z.yaml", "kept.yaml", "broken.yaml", "secret-number.yaml", "secret-list.yaml", "secret-text.yaml", "secret-block.yaml", "secret-anchor.yaml")
	place(t, dir, "a.yaml", manifest("shop", "goods", "3"))
	c = up(t, data, nil)
	c.has(t, "shop", "goods", "3")
	c.says(t, "7 objects are in no file any more: ConfigMap default/beside", 1)
	create(t, c.CoreV1().ConfigMaps("shop"), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "users"}})
	names, strays, err := c.prune(t, nil)
	if want := "ConfigMap default/beside 0\nConfigMap default/kept 0\nConfigMap default/plain 0\nConfigMap default/rest 0\n" +
		"CustomResourceDefinition.apiextensions.k8s.io widgets.example.com 1\nNamespace shop 3\nWidget.example.com default/one 0"; err != nil || names != want {
		t.Errorf("prune: got\n%s\n%v\nwant\n%s", names, err, want)
	}

	// Only what was agreed on is deleted, and only as long as it is the same object. The rest stays in no file.
	stale := slices.Clone(strays)
	for n := range stale {
		stale[n].UID += "0"
	}
	if names, _, err := c.prune(t, stale); err != nil || names != "" {
		t.Errorf("other objects with the names: got %s, %v, want none deleted", names, err)
	}
	agreed := slices.DeleteFunc(slices.Clone(strays), func(s control.Stray) bool {
		return s.Object == "Namespace shop" || strings.HasSuffix(s.Object, "/kept")
	})
	if _, done, err := c.prune(t, agreed); err != nil || len(done) != len(agreed) || slices.ContainsFunc(done, func(s control.Stray) bool { return s.Problem != "" }) {
		t.Errorf("prune: got %+v, %v", done, err)
	}
	for _, name := range []string{"beside", "plain", "rest"} {
		c.has(t, "default", name, "")
	}
	c.has(t, "default", "theirs", "1")
	c.has(t, "default", "kept", "1")
	c.has(t, "shop", "goods", "3")
	eventually.Nil(t, "the definition goes", func() error {
		if names, _, err := c.prune(t, nil); err != nil || names != "ConfigMap default/kept 0\nNamespace shop 3" {
			return fmt.Errorf("got %s, %v", names, err)
		}
		return nil
	})

	// Of two files with one object, both are named. When one of them goes, nothing happens.
	place(t, dir, "k1.yaml", manifest("", "kept", "2"))
	place(t, dir, "k2.yaml", manifest("", "kept", "3"))
	kept := uid(t, c, "kept")
	_, all = c.applied(t)
	for name, other := range map[string]string{"k1.yaml": "k2.yaml", "k2.yaml": "k1.yaml"} {
		if got, want := fmt.Sprint(all[name].State, all[name].Problems), "failed[ConfigMap default/kept is in "+other+", too]"; got != want {
			t.Errorf("%s: got %s, want %s", name, got, want)
		}
	}
	c.has(t, "default", "kept", "2")
	remove(t, dir, "k1.yaml")
	c.has(t, "default", "kept", "3")
	if got := uid(t, c, "kept"); got != kept {
		t.Error("an object in two files was made again")
	}

	// An extension API server that is away fails its own file only, and its objects are neither forgotten nor in the way.
	api := c.dynamic.Resource(schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"})
	if _, err := api.Create(t.Context(), &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService", "metadata": map[string]any{"name": "v1.away.example.com"},
		"spec": map[string]any{"group": "away.example.com", "version": "v1", "groupPriorityMinimum": int64(1), "versionPriority": int64(1), "insecureSkipTLSVerify": true,
			"service": map[string]any{"namespace": "default", "name": "away"}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	place(t, dir, "away.yaml", "apiVersion: away.example.com/v1\nkind: Thing\nmetadata: {name: one}\n")
	place(t, dir, "half.yaml", manifest("", "half", "3"))
	eventually.Nil(t, "the API is known to be away", func() error {
		_, all := c.applied(t)
		if f := all["away.yaml"]; !strings.Contains(fmt.Sprint(f.Problems), "the API away.example.com/v1 does not answer") || all["half.yaml"].State != control.Applied {
			return fmt.Errorf("got %+v", all)
		}
		return nil
	})
	c.has(t, "default", "half", "3")
	remove(t, dir, "away.yaml")
	inventory, err := c.CoreV1().ConfigMaps("kube-system").Get(t.Context(), "karve-manifests", metav1.GetOptions{})
	fatal(t, err)
	inventory.Data["objects"] = strings.Replace(inventory.Data["objects"], "[", `["Thing.away.example.com default/one",`, 1)
	if _, err := c.CoreV1().ConfigMaps("kube-system").Update(t.Context(), inventory, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if names, strays, err := c.prune(t, nil); err != nil || names != "Namespace shop 3\nThing.away.example.com default/one 0" || strays[1].Problem == "" {
			t.Errorf("with an API that is away: got %s, %+v, %v", names, strays, err)
		}
	}

	// What somebody else sets in an object that does not overwrite stays, and the file has failed.
	careful := func(value string) string {
		return strings.Replace(manifest("", "mixed", value), "{name", "{annotations: {"+control.OverwriteAnnotation+": 'false'}, name", 1)
	}
	place(t, dir, "mixed.yaml", careful("2"))
	c.has(t, "default", "mixed", "2")
	cm, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "mixed", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cm.Data["key"] = "3"
	if _, err := c.CoreV1().ConfigMaps("default").Update(t.Context(), cm, metav1.UpdateOptions{FieldManager: "somebody"}); err != nil {
		t.Fatal(err)
	}
	if _, all := c.applied(t); !strings.Contains(fmt.Sprint(all["mixed.yaml"].Problems), `conflict with "somebody" using v1: .data.key: put that into the file`) {
		t.Errorf("somebody else's value: got %+v", all["mixed.yaml"])
	}
	c.has(t, "default", "mixed", "3")
	place(t, dir, "mixed.yaml", careful("3"))
	if _, all := c.applied(t); all["mixed.yaml"].State != control.Applied {
		t.Errorf("the same value: got %+v", all["mixed.yaml"])
	}

	// Kubelets follow a DNS that a file describes.
	place(t, dir, "dns.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: kube-dns, namespace: kube-system}\nspec: {clusterIP: 10.96.0.77, ports: [{port: 53, protocol: UDP}]}\n")
	eventually.Nil(t, "kubelet-config names the DNS", func() error {
		if got := kubeletDNS(t, c); !slices.Equal(got, []string{"10.96.0.77"}) {
			return fmt.Errorf("got %v", got)
		}
		return nil
	})

	// Without the directory, or in an empty one, all stays until --all.
	away := filepath.Join(data, "away")
	fatal(t, os.Rename(dir, away))
	for range 2 {
		if whole, _ := c.applied(t); len(whole.Strays) < 5 || len(whole.Files) > 0 || whole.Problem != "" {
			t.Errorf("without files: got %+v, want all objects in no file", whole)
		}
		if names, _, err := c.prune(t, nil); err == nil || !strings.Contains(err.Error(), "--all") {
			t.Errorf("without files: got %s, %v, want a refusal", names, err)
		}
		_ = os.Mkdir(dir, 0o700) // empty
	}
	_, strays, err = c.prune(t, nil, control.All)
	if err == nil {
		_, _, err = c.prune(t, strays, control.All)
	}
	if err != nil {
		t.Error(err)
	}
	c.has(t, "default", "kept", "")
	c.has(t, "default", "mixed", "")
	c.has(t, "shop", "goods", "")
	c.has(t, "default", "theirs", "1")
	eventually.Nil(t, "kubelet-config names no DNS", func() error {
		if got := kubeletDNS(t, c); len(got) > 0 {
			return fmt.Errorf("got %v", got)
		}
		return nil
	})
	c.down(t)
}

func remove(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, name := range names {
		fatal(t, os.Remove(filepath.Join(dir, name)))
	}
}

func uid(t *testing.T, c *cluster, name string) string {
	t.Helper()
	found, err := c.CoreV1().ConfigMaps("default").Get(context.Background(), name, metav1.GetOptions{})
	fatal(t, err)
	return string(found.UID)
}
