package endtoend

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
)

// cannotRead is what the log says about stored objects.
const cannotRead = "cannot read the version of these stored objects: "

// changeStored changes the datastore of a stopped server.
func changeStored(t *testing.T, dir string, do func(e *datastore.Engine) error) {
	t.Helper()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	e, err := datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	if err := do(e); err != nil {
		t.Fatal(err)
	}
}

// A start after a move from another version of Kubernetes names stored objects that it cannot read. It
// names them again until they are gone.
func TestStoredVersionsAreNamed(t *testing.T) {
	long(t)
	parallel(t)
	dir := t.TempDir()
	const record, workload = "/registry/karve/kubernetes-version", "/registry/workloads/default/old"
	put := func(key string, value []byte) {
		t.Helper()
		changeStored(t, dir, func(e *datastore.Engine) error {
			_, err := e.Put(t.Context(), datastore.PutRequest{Key: key, Value: value})
			return err
		})
	}
	stored := func(version, kind string) []byte {
		object := runtime.Unknown{TypeMeta: runtime.TypeMeta{APIVersion: version, Kind: kind}}
		text, err := object.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return append([]byte("k8s\x00"), text...)
	}
	wantLog := func(what, want string) {
		t.Helper()
		t.Log(what)
		p := start(t, dir, bare...)
		p.stop()
		wantNamed(t, p, want)
	}
	wantLog("a new cluster", "")

	put(record, []byte("v1.0.0"))
	wantLog("another version", "")
	put(workload, stored("scheduling.k8s.io/v0", "Workload"))
	wantLog("the version that was recorded then", "")

	put(record, []byte("v1.0.0"))
	unreadable := cannotRead + "1 workloads.scheduling.k8s.io as v0. Unless their API is off, the API server does not become ready. Return to Kubernetes v1.0.0, and delete them there"
	wantLog("an object of a version that is gone", unreadable)
	wantLog("the same again", unreadable)
	changeStored(t, dir, func(e *datastore.Engine) error {
		_, err := e.Delete(t.Context(), datastore.DeleteRequest{Key: workload})
		return err
	})
	wantLog("without that object", "")
}

// wantNamed checks what the log says about the versions of stored objects; an empty want is nothing.
func wantNamed(t *testing.T, p *process, want string) {
	t.Helper()
	log := p.stderr.String()
	if named := strings.Contains(log, cannotRead); named != (want != "") || !strings.Contains(log, want) {
		t.Errorf("got the log\n%s\nwant %q about the versions of stored objects", log, want)
	}
}

// TestOldVersionsAreMigrated lets upstream's controller write an object again that v1.36.4 stored in a
// version that a later Kubernetes drops.
func TestOldVersionsAreMigrated(t *testing.T) {
	long(t)
	parallel(t)
	const policy = "/registry/mutatingadmissionpolicies/flag"
	dir := unpackOldData(t)
	storedAs := func() (version string) {
		changeStored(t, dir, func(e *datastore.Engine) error {
			found, err := e.Range(t.Context(), datastore.RangeRequest{Key: policy})
			if err != nil || len(found.KVs) != 1 {
				return fmt.Errorf("%s: %d values, %w", policy, len(found.KVs), err)
			}
			var object runtime.Unknown
			err = object.Unmarshal(bytes.TrimPrefix(found.KVs[0].Value, []byte("k8s\x00")))
			version = object.APIVersion
			return err
		})
		return version
	}
	if got, want := storedAs(), "admissionregistration.k8s.io/v1beta1"; got != want {
		t.Fatalf("before: %s is stored as %s, want %s", policy, got, want)
	}
	p := start(t, dir, encryptedBy("encryption.yaml"))
	p.kubectl("create", "-f", write(t, "migration.yaml", `
apiVersion: storagemigration.k8s.io/v1
kind: StorageVersionMigration
metadata: {name: policies}
spec: {resource: {group: admissionregistration.k8s.io, resource: mutatingadmissionpolicies}}
`))
	p.kubectl("wait", "storageversionmigration/policies", "--for=condition=Succeeded", "--timeout=90s")
	p.stop()
	if got, want := storedAs(), "admissionregistration.k8s.io/v1"; got != want {
		t.Errorf("after: %s is stored as %s, want %s", policy, got, want)
	}
}
