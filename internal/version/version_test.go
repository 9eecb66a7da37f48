package version

import (
	"os"
	"regexp"
	"testing"

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
	if got := version.Get(); got.GitVersion != Full() || got.Major != "1" || got.Minor != "36" {
		t.Errorf("component-base: got %s (%s.%s), want %s (1.36)", got.GitVersion, got.Major, got.Minor, Full())
	}
	if got := clientversion.Get().GitVersion; got != Full() {
		t.Errorf("client-go: got %s, want %s", got, Full())
	}
}
