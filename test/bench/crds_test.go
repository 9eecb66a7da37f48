package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const boatCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: boats.fleet.example.org}
spec:
  group: fleet.example.org
  names: {kind: Boat}
  versions: [{name: v1, served: true}, {name: v1beta1, served: false}]
`

func TestCRDsOfADirectory(t *testing.T) {
	dir := t.TempDir()
	if _, err := crdsIn(dir); err == nil {
		t.Error("an empty directory: got no error")
	}
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("boats.yaml", boatCRD)
	write("README.md", "no definition")
	all, err := crdsIn(dir)
	if err != nil || len(all) != 1 {
		t.Fatalf("got %d, %v, want one definition", len(all), err)
	}
	if got := kinds(all); len(got) != 1 || !slices.Equal(got["fleet.example.org/v1"], []string{"Boat"}) {
		t.Errorf("got %v, want Boat in the version that is served", got)
	}
	write("other.yaml", "kind: ConfigMap\n")
	if _, err := crdsIn(dir); err == nil || !strings.Contains(err.Error(), "other.yaml") {
		t.Errorf("got %v, want an error that names other.yaml", err)
	}
}

func TestMissingKind(t *testing.T) {
	found, err := discovered([]byte(`{"items":[{"metadata":{"name":"fleet.example.org"},"versions":[{"version":"v1",
		"resources":[{"resource":"boats","responseKind":{"kind":"Boat"}}]}]}]}`))
	if err != nil {
		t.Fatal(err)
	}
	there := func(gv, kind string) bool { return slices.Contains(found[gv], kind) }
	if err := missing(map[string][]string{"fleet.example.org/v1": {"Boat"}}, there); err != nil {
		t.Errorf("the kind is there: got %v", err)
	}
	if err := missing(map[string][]string{"fleet.example.org/v1": {"Boat", "Raft"}}, there); err == nil || !strings.Contains(err.Error(), "Raft") {
		t.Errorf("got %v, want an error that names Raft", err)
	}
	if got := string(definition("fleet.example.org/v1", "Boat")); got != "org.example.fleet.v1.Boat" {
		t.Errorf("got %s", got)
	}
}
