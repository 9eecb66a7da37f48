// Package version makes every build of Karve report the Kubernetes version that it
// contains. Upstream gets the version from -ldflags, and otherwise reports v0.0.0-master,
// which clients that parse it refuse. `go run` and `go build` without flags have to be
// right too.
package version

import (
	"fmt"
	"runtime/debug"
	"strings"
	_ "unsafe" // for go:linkname

	_ "k8s.io/client-go/pkg/version"
	"k8s.io/component-base/version"
)

// Kubernetes is the version of the Kubernetes modules in go.mod; a test compares them.
const Kubernetes = "v1.37.2"

// Release is the number of the next release with that version of Kubernetes, or of this one
// if it is a release: 1 after a move to another version, and one more after each release.
const Release = "1"

// Build is empty in a release. In every other build it says what that was made from;
// scripts/build sets it with -ldflags -X.
var Build = "dev"

// upstream's fallbacks (k8s.io/component-base/version/base.go and its copy in
// client-go, which only the User-Agent comes from).
//
//go:linkname gitVersion k8s.io/component-base/version.gitVersion
var gitVersion string

//go:linkname gitMajor k8s.io/component-base/version.gitMajor
var gitMajor string

//go:linkname gitMinor k8s.io/component-base/version.gitMinor
var gitMinor string

//go:linkname gitCommit k8s.io/component-base/version.gitCommit
var gitCommit string

//go:linkname gitTreeState k8s.io/component-base/version.gitTreeState
var gitTreeState string

//go:linkname clientVersion k8s.io/client-go/pkg/version.gitVersion
var clientVersion string

//go:linkname clientCommit k8s.io/client-go/pkg/version.gitCommit
var clientCommit string

func init() {
	if !strings.HasPrefix(gitVersion, "v0.0.0") { // set by -ldflags
		return
	}
	gitVersion = Full()
	parts := strings.SplitN(strings.TrimPrefix(Kubernetes, "v"), ".", 3)
	gitMajor, gitMinor = parts[0], parts[1]
	gitCommit, gitTreeState = commit()
	clientVersion, clientCommit = gitVersion, gitCommit
	// version.Get returns a copy that upstream's own init made.
	if err := version.SetDynamicVersion(gitVersion); err != nil {
		panic(fmt.Sprintf("version %q: %v", gitVersion, err)) // a constant of this file, or -X, is wrong
	}
}

// Full returns the version that commands and /version report, and after which a release is
// named: v1.37.2+karve.1 for a release, v1.37.2+karve.1.dev-COMMIT for a build before it. What
// follows the plus sign is build metadata of a semantic version: clients that compare
// versions with a kubelet's or kubectl's leave it out.
func Full() string {
	full := Kubernetes + "+karve." + Release
	if Build != "" {
		full += "." + Build
	}
	return full
}

// commit returns the revision from which the binary was built, if the go command recorded
// it, and whether the tree had changes.
func commit() (revision, treeState string) {
	revision, treeState = "unknown", "clean"
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return
	}
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.revision":
			revision = s.Value
		case s.Key == "vcs.modified" && s.Value == "true":
			treeState = "dirty"
		}
	}
	return
}
