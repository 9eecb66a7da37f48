package main

import (
	"os"
	"path/filepath"
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
	write("other.yaml", "kind: ConfigMap\n")
	if _, err := crdsIn(dir); err == nil || !strings.Contains(err.Error(), "other.yaml") {
		t.Errorf("got %v, want an error that names other.yaml", err)
	}
}

func TestMissingKind(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "boats.yaml"), []byte(boatCRD), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := crdsIn(dir)
	if err != nil {
		t.Fatal(err)
	}
	discovery := []byte(`{"resource":"boats","responseKind":{"group":"fleet.example.org","version":"v1","kind":"Boat"},"scope":"Namespaced"}`)
	if err := contains(discovery, all, inDiscovery); err != nil {
		t.Errorf("the kind is there: got %v", err)
	}
	if err := contains([]byte("{}"), all, inDiscovery); err == nil || !strings.Contains(err.Error(), "Boat of fleet.example.org/v1") {
		t.Errorf("got %v, want an error that names Boat in the version that is served", err)
	}
	if err := contains([]byte("org.example.fleet.v1.Boat"), all, definition); err != nil {
		t.Errorf("got %v", err)
	}
}
