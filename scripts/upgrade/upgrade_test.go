package main

import (
	"os"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

func TestMove(t *testing.T) {
	mod, err := modfile.Parse("go.mod", []byte(`module github.com/karve-k8s/karve

go 1.26

require (
	example.com/other v1.0.0 // a reason
	example.com/own v1.0.0 // Kubernetes' own version: it is tested with that
	github.com/karve-k8s/karve/control v0.0.0
	k8s.io/api v0.36.4
	k8s.io/kubectl v0.0.0
	k8s.io/kubernetes v1.36.4
	k8s.io/utils v0.0.0-20260101000000-0123456789ab
)

replace (
	k8s.io/api => k8s.io/api v0.36.4
	k8s.io/former => k8s.io/former v0.36.4
	k8s.io/kubectl => k8s.io/kubectl v0.36.4
)

replace github.com/karve-k8s/karve/control => ./control

// Kubernetes' own version. A newer one is larger.
replace example.com/large => example.com/large v1.0.0
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	upstream := map[string]string{
		"example.com/other": "v1.1.0", "example.com/own": "v1.2.0", "example.com/large": "v1.0.1",
		"k8s.io/api": "v0.0.0", "k8s.io/kubectl": "v0.0.0", "k8s.io/streaming": "v0.0.0",
	}
	if err := move(mod, upstream, "v1.36.4", "v1.37.2"); err != nil {
		t.Fatal(err)
	}
	const want = `module github.com/karve-k8s/karve

go 1.26

require (
	example.com/other v1.0.0 // a reason
	example.com/own v1.2.0 // Kubernetes' own version: it is tested with that
	github.com/karve-k8s/karve/control v0.0.0
	k8s.io/api v0.37.2
	k8s.io/kubectl v0.0.0
	k8s.io/kubernetes v1.37.2
	k8s.io/utils v0.0.0-20260101000000-0123456789ab
)

replace (
	k8s.io/api => k8s.io/api v0.37.2
	k8s.io/kubectl => k8s.io/kubectl v0.37.2
)

replace github.com/karve-k8s/karve/control => ./control

// Kubernetes' own version. A newer one is larger.
replace example.com/large => example.com/large v1.0.1

replace k8s.io/streaming => k8s.io/streaming v0.37.2
`
	if got := string(modfile.Format(mod.Syntax)); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	if ownRequired(mod) != 1 {
		t.Errorf("got %d modules of the repository, want 1", ownRequired(mod))
	}

	delete(upstream, "example.com/own")
	if err := move(mod, upstream, "v1.37.2", "v1.37.3"); err == nil || !strings.Contains(err.Error(), "example.com/own: Kubernetes v1.37.3 does not require it") {
		t.Errorf("a reason that no longer holds: got %v", err)
	}
}

func TestWrongVersionsAreRefused(t *testing.T) {
	for _, args := range [][]string{{}, {"1.37.2"}, {"v1.37"}, {"v2.0.0"}, {"latest"}, {"v1.37.2", "patch"}, {"v1.36.4", "v1.37.2", "v1.38.0"}} {
		if err := run(t.Context(), args); err == nil {
			t.Errorf("%v is accepted", args)
		}
	}
}

// TestReportFindsEverything compares the present version with itself. It fails if there is no package or file of a name.
func TestReportFindsEverything(t *testing.T) {
	t.Chdir("../..")
	version, err := committedVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := report(t.Context(), &out, version, version); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out.String(), "###") || strings.Contains(out.String(), "diff --git") {
		t.Errorf("a version differs from itself:\n%s", out.String())
	}
}

func TestRepeatingFilesHaveTheVersion(t *testing.T) {
	t.Chdir("../..")
	version, err := committedVersion(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range repeating {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), version) && !strings.Contains(string(text), staging(version)) {
			t.Errorf("%s does not have %s or %s", file, version, staging(version))
		}
	}
}
