// Command sbom prints what a Go binary is made of, as a CycloneDX 1.5 document in JSON:
// sbom BINARY VERSION. It takes the modules that the linker recorded in the binary, so the list
// is complete and has nothing else. The same binary gives the same bytes: the document has no
// time and no serial number. The binary records no licences, so they are not listed.
//
// `cyclonedx-gomod bin` reads the same list. It writes the time into the document, package URLs such as
// pkg:golang/./control@(devel) for modules that a directory replaces, and few of the build settings: GOARM, in which the
// binaries for armv6 and armv7 differ, is missing.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
)

type document struct {
	Schema      string      `json:"$schema"`
	BOMFormat   string      `json:"bomFormat"`
	SpecVersion string      `json:"specVersion"`
	Version     int         `json:"version"`
	Metadata    metadata    `json:"metadata"`
	Components  []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Ref        string     `json:"bom-ref"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl"`
	Properties []property `json:"properties,omitempty"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: sbom BINARY VERSION")
		os.Exit(2)
	}
	info, err := buildinfo.ReadFile(os.Args[1])
	if err != nil {
		log.Fatal("sbom: ", err)
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(describe(info, os.Args[2])); err != nil {
		log.Fatal("sbom: ", err)
	}
}

// describe lists the standard library, which has the version of Go, and the modules in the
// order of the binary, which is by name.
func describe(info *debug.BuildInfo, version string) document {
	d := document{
		Schema: "http://cyclonedx.org/schema/bom-1.5.schema.json", BOMFormat: "CycloneDX", SpecVersion: "1.5", Version: 1,
		Metadata:   metadata{module("application", info.Main.Path, version)},
		Components: []component{module("library", "std", info.GoVersion[len("go"):])},
	}
	for _, s := range info.Settings {
		d.Metadata.Component.Properties = append(d.Metadata.Component.Properties, property{"go:build:" + s.Key, s.Value})
	}
	for _, m := range info.Deps {
		directory := ""
		if r := m.Replace; r != nil && (strings.HasPrefix(r.Path, ".") || filepath.IsAbs(r.Path)) {
			directory = r.Path // of the repository, and no path of a module
		} else if r != nil { // the module that was compiled
			m = r
		}
		c := module("library", m.Path, m.Version)
		if directory != "" {
			c.Properties = []property{{"go:replace", directory}}
		}
		if m.Sum != "" { // of the files of the module, as in go.sum
			c.Properties = append(c.Properties, property{"go:sum", m.Sum})
		}
		d.Components = append(d.Components, c)
	}
	return d
}

// module is a component with its package URL, in which a plus sign has to be escaped: releases
// of Karve have one, and so have "+incompatible" modules.
func module(kind, path, version string) component {
	purl := "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
	return component{Type: kind, Ref: purl, Name: path, Version: version, PURL: purl}
}
