package endtoend

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/internal/eventually"
)

// oldData is a data directory that a release with an earlier Kubernetes has made, and the objects that it
// served of it; README.md there describes them.
const oldData = "testdata/olddata"

func encryptedBy(file string) string {
	path, err := filepath.Abs(filepath.Join(oldData, file))
	if err != nil {
		panic(err)
	}
	return "--encryption-provider-config=" + path
}

// TestOldData starts a server on the data of an earlier release. Every object is there, with its uid and its
// content. The database from before the upgrade can be restored as a backup.
func TestOldData(t *testing.T) {
	long(t)
	parallel(t)
	dir, before := unpackOldData(t), filepath.Join(t.TempDir(), "before")
	database, err := os.ReadFile(filepath.Join(dir, datastore.EngineFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(before, database, 0o600); err != nil {
		t.Fatal(err)
	}
	upgraded := func() {
		t.Helper()
		p := start(t, dir, encryptedBy("encryption.yaml"))
		wantObjects(t, p)
		wantSecrets(t, p)
		wantNamed(t, p, "")
		p.stop()
		wantEncrypted(t, dir)
	}
	upgraded()
	karve(t, "datastore", "restore", "--data-dir", dir, before)
	upgraded()
}

// recorded is an object as a server served it, and where.
type recorded struct {
	GVR    schema.GroupVersionResource `json:"resource"`
	Object map[string]any              `json:"object"`
}

// wantObjects checks that the server has the recorded objects. Those that users made have the recorded content;
// a newer Kubernetes may add defaults and status. Its own objects may have other content, and APIServices go with their APIs.
func wantObjects(t *testing.T, p *process) {
	t.Helper()
	c, err := dynamic.NewForConfig(p.plain())
	if err != nil {
		t.Fatal(err)
	}
	users := 0
	for _, r := range readObjects(t) {
		was := unstructured.Unstructured{Object: r.Object}
		where := fmt.Sprintf("%s %s/%s", r.GVR.GroupResource(), was.GetNamespace(), was.GetName())
		if r.GVR.Resource == "apiservices" || r.GVR.Resource == "leases" {
			continue
		}
		var now *unstructured.Unstructured
		eventually.Nil(t, where, func() (err error) { // the address of the server comes a moment after it is ready
			now, err = c.Resource(r.GVR).Namespace(was.GetNamespace()).Get(t.Context(), was.GetName(), metav1.GetOptions{})
			if apierrors.IsNotFound(err) && was.GetName() != "kubernetes" {
				t.Fatalf("%s is gone", where)
			}
			return err
		})
		if now.GetUID() != was.GetUID() {
			t.Errorf("%s has the uid %s, and had %s", where, now.GetUID(), was.GetUID())
		}
		if !ofUser(was) {
			continue
		}
		users++
		for _, system := range []string{"managedFields", "resourceVersion"} {
			unstructured.RemoveNestedField(was.Object, "metadata", system)
		}
		delete(was.Object, "status")
		var served map[string]any // numbers as in the record
		if text, err := now.MarshalJSON(); err != nil || json.Unmarshal(text, &served) != nil {
			t.Fatal(err)
		}
		for _, problem := range missing("", was.Object, served) {
			t.Errorf("%s: %s", where, problem)
		}
	}
	if users < 20 {
		t.Errorf("only %d objects of users were compared", users)
	}
}

// ofUser reports whether an object was made by kubectl, and not by a component of Kubernetes.
func ofUser(o unstructured.Unstructured) bool {
	for _, f := range o.GetManagedFields() {
		if strings.HasPrefix(f.Manager, "kubectl") {
			return true
		}
	}
	return false
}

// missing returns the fields of want that got does not have.
func missing(path string, want, got any) (problems []string) {
	w, isMap := want.(map[string]any)
	g, areMaps := got.(map[string]any)
	if !isMap || !areMaps {
		if !reflect.DeepEqual(want, got) {
			return []string{fmt.Sprintf("%s is %v, and was %v", path, got, want)}
		}
		return nil
	}
	for name, value := range w {
		problems = append(problems, missing(path+"."+name, value, g[name])...)
	}
	return problems
}

// wantSecrets checks that the Secrets can be read, and written.
func wantSecrets(t *testing.T, p *process) {
	t.Helper()
	for name, want := range map[string]string{"cargo": "of-now", "cargo-before": "of-before", "fixed": "for-ever"} {
		got := p.kubectl("get", "secret", "-n", "harbour", name, "-o", `go-template={{.data.what | base64decode}}`)
		if want := "salt-and-timber-" + want; got != want {
			t.Errorf("the Secret %s: got %q, want %q", name, got, want)
		}
	}
	p.kubectl("label", "secret", "-n", "harbour", "cargo-before", "read=again")
}

// wantEncrypted looks for the encrypted objects in the files of the datastore.
func wantEncrypted(t *testing.T, dir string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, datastore.EngineFile+"*"))
	if err != nil {
		t.Fatal(err)
	}
	var stored []byte
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		stored = append(stored, text...)
	}
	for _, want := range []string{"the-harbour-is-open", "k8s:enc:secretbox:v1:now:", "k8s:enc:aescbc:v1:before:"} {
		if !bytes.Contains(stored, []byte(want)) {
			t.Errorf("there is no %q in %v", want, files)
		}
	}
	for _, secret := range []string{"salt-and-timber", "herring-of-now"} {
		if bytes.Contains(stored, []byte(secret)) {
			t.Errorf("%q is readable in %v", secret, files)
		}
	}
}

func openOldData(t *testing.T, suffix string) io.Reader {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(oldData, "v*"+suffix))
	if err != nil || len(files) != 1 {
		t.Fatalf("%s has %v, want one file *%s: %v", oldData, files, suffix, err)
	}
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	r, err := gzip.NewReader(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%s: %v", files[0], err)
	}
	return r
}

func readObjects(t *testing.T) (all []recorded) {
	t.Helper()
	lines := bufio.NewScanner(openOldData(t, ".objects.gz"))
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var one recorded
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			t.Fatal(err)
		}
		all = append(all, one)
	}
	if err := lines.Err(); err != nil || len(all) == 0 {
		t.Fatalf("got %d objects: %v", len(all), err)
	}
	return all
}

// unpackOldData unpacks the data directory into a new one.
func unpackOldData(t *testing.T) string {
	t.Helper()
	dir, r := t.TempDir(), tar.NewReader(openOldData(t, ".tar.gz"))
	for {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return dir
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(r)
		path := filepath.Join(dir, filepath.FromSlash(header.Name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(path), 0o700)
		}
		if err == nil {
			err = os.WriteFile(path, text, os.FileMode(header.Mode))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
