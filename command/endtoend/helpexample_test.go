package endtoend

import (
	"regexp"
	"strings"
	"testing"
)

// A server takes the examples in the help of --runtime-config.
func TestRuntimeConfigExample(t *testing.T) {
	t.Parallel()
	examples := regexp.MustCompile(`[a-z0-9.]+/[a-z0-9]+=true`).FindAllString(karve(t, "server", "--help"), -1)
	if len(examples) == 0 {
		t.Fatal("the help has no example")
	}
	wantProblems(t, serverWith(t, nil, "--runtime-config="+strings.Join(examples, ","), "--cluster-cidr=nope"), "--cluster-cidr nope")
}
