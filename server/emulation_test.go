package server_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"

	"github.com/karve-k8s/karve/internal/version"
	"github.com/karve-k8s/karve/server"
	"github.com/karve-k8s/karve/server/apiserver"
)

// servedSince has APIs, and the minor version of Kubernetes that serves them by default from then on.
var servedSince = map[string]uint{
	"/apis/apps/v1":            0,
	"/apis/resource.k8s.io/v1": 34,
	"/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies": 36,
	"/apis/storagemigration.k8s.io/v1":                                37,
	"/apis/certificates.k8s.io/v1/clustertrustbundles":                37,
}

// minorOf returns the version that is some minor versions older than this one, without a patch.
func minorOf(t *testing.T, older int) (minor uint, name string) {
	t.Helper()
	v := utilversion.MustParseSemantic(version.Kubernetes)
	minor = uint(int(v.Minor()) - older)
	return minor, fmt.Sprintf("%d.%d", v.Major(), minor)
}

// A server that emulates the oldest version that it can serves the APIs of that version, and says so.
func TestEmulatedVersion(t *testing.T) {
	minor, name := minorOf(t, 3)
	c := start(t, func(config *server.Config) { config.APIServerArgs = []string{"emulated-version=" + name} })
	client := httpClient(t, c.admin)
	status, text := get(t, client, c.URL+"/version")
	var got struct{ EmulationMajor, EmulationMinor, GitVersion string }
	if err := json.Unmarshal([]byte(text), &got); err != nil || status != http.StatusOK {
		t.Fatalf("/version: got %d %s and error %v", status, text, err)
	}
	if got.EmulationMajor+"."+got.EmulationMinor != name || got.GitVersion != version.Full() {
		t.Errorf("/version: got %+v, want an emulation of %s by %s", got, name, version.Full())
	}
	for api, since := range servedSince {
		want := http.StatusNotFound
		if minor >= since {
			want = http.StatusOK
		}
		if got, _ := get(t, client, c.URL+api); got != want {
			t.Errorf("%s: got %d, want %d", api, got, want)
		}
	}
}

// Other versions, and gates that are newer than the emulated version, are refused with upstream's
// text, once and with the name of the option.
func TestEmulatedVersionIsRefused(t *testing.T) {
	_, next := minorOf(t, -1)
	_, tooOld := minorOf(t, 4)
	minor, newest := minorOf(t, 0)
	_, before := minorOf(t, 1)
	gate := ""
	for name, specs := range utilfeature.DefaultMutableFeatureGate.GetAllVersioned() {
		if specs[0].Version.EqualTo(utilversion.MajorMinor(1, minor)) && (gate == "" || string(name) < gate) {
			gate = string(name)
		}
	}
	if gate == "" {
		t.Fatalf("no feature gate is new in %s", newest)
	}
	for _, test := range []struct{ args, want string }{
		{"emulated-version=" + next, "--kube-apiserver-arg emulated-version, min-compatibility-version: emulation version " + next + " is not between ["},
		{"emulated-version=" + tooOld, "emulation version " + tooOld + " is not between ["},
		{"emulated-version=" + before + " min-compatibility-version=" + newest, "minCompatibilityVersion version " + newest + " is not between ["},
		{"emulated-version=older", `could not parse "older" as version`},
		{"emulated-version=" + before + " feature-gates=" + gate + "=true", "cannot set feature gate " + gate + " to true, feature is PreAlpha at emulated version " + before},
	} {
		c := server.Config{DataDir: t.TempDir(), APIServerArgs: strings.Fields(test.args)}
		err := c.Validate(t.Context())
		if !errors.Is(err, apiserver.ErrFeatureGates) || strings.Count(fmt.Sprint(err), test.want) != 1 {
			t.Errorf("%s: got %v, want %q once", test.args, err, test.want)
		}
	}
	c := server.Config{DataDir: t.TempDir(), APIServerArgs: []string{"emulated-version=" + newest, "feature-gates=" + gate + "=true"}}
	if err := c.Validate(t.Context()); err != nil && strings.Contains(err.Error(), "PreAlpha") {
		t.Errorf("%s with the version that has it: %v", gate, err)
	}
}
