package apiserver

import (
	"slices"
	"testing"
	_ "unsafe" // for go:linkname

	genericoptions "k8s.io/apiserver/pkg/server/options"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
)

// enabledPluginNames returns the plugins that upstream enables for its options, in order.
//
//go:linkname enabledPluginNames k8s.io/apiserver/pkg/server/options.(*AdmissionOptions).enabledPluginNames
func enabledPluginNames(*genericoptions.AdmissionOptions) []string

func enabledBy(t *testing.T, args ...string) []string {
	t.Helper()
	o, _, err := newOptions(Config{Args: args})
	if err != nil {
		t.Fatal(err)
	}
	if errs := o.Admission.Validate(); len(errs) > 0 {
		t.Fatal(errs)
	}
	return enabledPluginNames(o.Admission.GenericAdmission)
}

// Karve enables upstream's default plugins, in upstream's order, and one more.
func TestAdmissionPluginsMatchUpstream(t *testing.T) {
	upstream := enabledPluginNames(options.NewServerRunOptions().Admission.GenericAdmission)
	if len(upstream) < 20 || slices.Contains(upstream, "NodeRestriction") {
		t.Fatalf("upstream's default is not what it was: %v", upstream)
	}
	got := enabledBy(t)
	at := slices.Index(got, "NodeRestriction")
	if at < 0 {
		t.Fatalf("NodeRestriction is not among %v", got)
	}
	if rest := slices.Delete(slices.Clone(got), at, at+1); !slices.Equal(rest, upstream) {
		t.Errorf("apart from NodeRestriction\ngot  %v\nwant %v", rest, upstream)
	}
}

func TestUsersAdmissionPluginsAreAdded(t *testing.T) {
	got := enabledBy(t, "enable-admission-plugins=AlwaysPullImages")
	for _, want := range []string{"AlwaysPullImages", "NodeRestriction"} {
		if !slices.Contains(got, want) {
			t.Errorf("got %v, want %s among them", got, want)
		}
	}
	got = enabledBy(t, "disable-admission-plugins=NodeRestriction,PodSecurity")
	for _, not := range []string{"NodeRestriction", "PodSecurity"} {
		if slices.Contains(got, not) {
			t.Errorf("%s was disabled, got %v", not, got)
		}
	}
}
