package version

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	clientversion "k8s.io/client-go/pkg/version"
	"k8s.io/component-base/version"
)

func TestKubernetesIsWhatGoModNames(t *testing.T) {
	content, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	required := regexp.MustCompile(`(?m)^\s*(?:require )?k8s\.io/kubernetes (v\S+)`).FindSubmatch(content)
	if required == nil {
		t.Fatal("go.mod names no k8s.io/kubernetes")
	}
	if got := string(required[1]); got != Kubernetes {
		t.Errorf("version.Kubernetes is %s, go.mod has %s", Kubernetes, got)
	}
}

// Without -ldflags, as in this test, both of upstream's copies have the version.
func TestUpstreamReportsIt(t *testing.T) {
	numbers := strings.Split(strings.TrimPrefix(Kubernetes, "v"), ".")
	if got := version.Get(); got.GitVersion != Full() || got.Major != numbers[0] || got.Minor != numbers[1] {
		t.Errorf("component-base: got %s (%s.%s), want %s", got.GitVersion, got.Major, got.Minor, Full())
	}
	if got := clientversion.Get().GitVersion; got != Full() {
		t.Errorf("client-go: got %s, want %s", got, Full())
	}
}

// What tells a build of Karve from another is build metadata, so that a client which compares
// versions sees Kubernetes' own.
func TestFull(t *testing.T) {
	defer func(build string) { Build = build }(Build)
	for build, want := range map[string]string{"": "karve." + Release, "dev-0a1b2c3-dirty": "karve." + Release + ".dev-0a1b2c3-dirty"} {
		Build = build
		v, err := utilversion.ParseSemantic(Full())
		if err != nil {
			t.Errorf("build %q: %v", build, err)
			continue
		}
		if c, err := v.Compare(Kubernetes); err != nil || c != 0 || v.PreRelease() != "" || v.BuildMetadata() != want {
			t.Errorf("build %q: got %s with metadata %q, want %s with %q; compared: %d, %v", build, v, v.BuildMetadata(), Kubernetes, want, c, err)
		}
	}
	if n, err := strconv.Atoi(Release); err != nil || n < 1 {
		t.Errorf("Release is %q, want a number from 1 on", Release)
	}
}
