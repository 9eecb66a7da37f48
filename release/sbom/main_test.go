package main

import (
	"reflect"
	"runtime/debug"
	"testing"
)

// The specification of package URLs has the version percent-encoded.
func TestModule(t *testing.T) {
	for version, want := range map[string]string{
		"v1.37.2+karve.1": "pkg:golang/example.com/m@v1.37.2%2Bkarve.1",
		"v1.2.3":          "pkg:golang/example.com/m@v1.2.3",
	} {
		if c := module("library", "example.com/m", version); c.PURL != want || c.Ref != want || c.Version != version {
			t.Errorf("%s: got %+v, want the URL %s", version, c, want)
		}
	}
}

// A replaced module is the one that was compiled; one that a directory replaces keeps its name.
func TestReplacedModules(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.26.5", Deps: []*debug.Module{
		{Path: "example.com/a", Version: "v1.0.0", Sum: "h1:a"},
		{Path: "example.com/b", Version: "v1.0.0", Replace: &debug.Module{Path: "example.com/fork", Version: "v1.1.0", Sum: "h1:b"}},
		{Path: "example.com/c/v3", Version: "v3.7.3", Replace: &debug.Module{Path: "./kine/c", Version: "(devel)"}},
		{Path: "example.com/d", Version: "v0.0.0", Replace: &debug.Module{Path: "/d", Version: "(devel)"}},
	}}
	type row struct {
		purl       string
		properties []property
	}
	var got []row
	for _, c := range describe(info, "v1").Components[1:] {
		got = append(got, row{c.PURL, c.Properties})
	}
	want := []row{
		{"pkg:golang/example.com/a@v1.0.0", []property{{"go:sum", "h1:a"}}},
		{"pkg:golang/example.com/fork@v1.1.0", []property{{"go:sum", "h1:b"}}},
		{"pkg:golang/example.com/c/v3@v3.7.3", []property{{"go:replace", "./kine/c"}}},
		{"pkg:golang/example.com/d@v0.0.0", []property{{"go:replace", "/d"}}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
