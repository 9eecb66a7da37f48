package controllers

import (
	"slices"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/certs"
	"k8s.io/kubernetes/cmd/kube-controller-manager/app"
	"k8s.io/kubernetes/cmd/kube-controller-manager/names"
)

func TestExtraControllersExistAndAreOffUpstream(t *testing.T) {
	for _, name := range extraControllers {
		if !slices.Contains(app.KnownControllers(), name) {
			t.Errorf("%s: upstream has no such controller", name)
		}
		if !slices.Contains(app.ControllersDisabledByDefault(), name) {
			t.Errorf("%s: upstream has it on by default, it needs no mention here", name)
		}
	}
}

// The token controller is the only one that app.BuildControllers would not build by itself. If
// there were another, Karve would lack it.
func TestTokenControllerIsTheOnlySpecialOne(t *testing.T) {
	var special []string
	for name, d := range app.NewControllerDescriptors() {
		if d.RequiresSpecialHandling() {
			special = append(special, name)
		}
	}
	if want := []string{names.ServiceAccountTokenController}; !slices.Equal(special, want) {
		t.Errorf("controllers that upstream handles specially: got %v, want %v", special, want)
	}
}

// Karve's certificate files fill in only what the user left open. Upstream refuses them if the
// user names an authority that signs everything.
func TestUsersFilesWinOverKarvesCertificates(t *testing.T) {
	store, _, err := certs.Ensure(certs.Config{Dir: t.TempDir(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		args          []string
		rootCA, signs string
	}{
		"no files":              {nil, store.CertFile(certs.ServerCA), store.KeyFile(certs.ServerCA)},
		"a root CA":             {[]string{"root-ca-file=/mine.crt"}, "/mine.crt", store.KeyFile(certs.ServerCA)},
		"a cluster's authority": {[]string{"cluster-signing-cert-file=/mine.crt", "cluster-signing-key-file=/mine.key"}, store.CertFile(certs.ServerCA), ""},
	} {
		o, err := Parse(Settings{Args: tc.args})
		if err != nil {
			t.Fatal(err)
		}
		o.UseCertificates(store)
		if got := o.SAController.RootCAFile; got != tc.rootCA {
			t.Errorf("%s: root CA: got %q, want %q", name, got, tc.rootCA)
		}
		if got := o.CSRSigningController.KubeletServingSignerConfiguration.KeyFile; got != tc.signs {
			t.Errorf("%s: signer of servers: got %q, want %q", name, got, tc.signs)
		}
		if errs := o.CSRSigningController.Validate(); len(errs) > 0 {
			t.Errorf("%s: upstream refuses: %v", name, errs)
		}
	}
}

// Upstream finds these mistakes when it builds the controller, and ends the program.
func TestSizesOfNodesPodRanges(t *testing.T) {
	const both = "10.1.0.0/16,fd00:1::/56"
	for _, tc := range []struct {
		pods string
		args []string
		want string // in the error; empty: none
	}{
		{both, nil, ""},
		{"", []string{"node-cidr-mask-size=24"}, ""},
		{both, []string{"node-cidr-mask-size=24"}, "node-cidr-mask-size=24: the Pod ranges " + both},
		{both, []string{"node-cidr-mask-size=24", "allocate-node-cidrs=false"}, ""},
		{both, []string{"node-cidr-mask-size=24", "controllers=*,-nodeipam"}, ""},
		{both, []string{"node-cidr-mask-size-ipv4=26", "node-cidr-mask-size-ipv6=72"}, ""},
		{"10.1.0.0/16", []string{"node-cidr-mask-size=20"}, ""},
		{"10.1.0.0/16", []string{"node-cidr-mask-size=20", "node-cidr-mask-size-ipv4=20"}, "leave it out"},
		{"10.1.0.0/16", []string{"node-cidr-mask-size-ipv6=64"}, "node-cidr-mask-size-ipv6=64: the Pod range 10.1.0.0/16"},
		{"fd00:1::/56", []string{"node-cidr-mask-size-ipv4=24"}, "node-cidr-mask-size-ipv4=24: the Pod range fd00:1::/56"},
		{"10.1.0.0/16", []string{"node-cidr-mask-size=12"}, "--cluster-cidr 10.1.0.0/16: a node's part is a /12"},
		{"10.1.0.0/25", nil, "node-cidr-mask-size-ipv4"},
		{"fd00::/32", nil, "--cluster-cidr fd00::/32: a node's part is a /64"},
		{"10.1.0.0/16", []string{"node-cidr-mask-size=40"}, "want 32 at most"},
	} {
		o, err := Parse(Settings{Args: tc.args, ClusterCIDR: tc.pods})
		if err != nil {
			t.Fatal(err)
		}
		if err := o.checkNodeMasks(); (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("--cluster-cidr %q, %v: got %v, want %q", tc.pods, tc.args, err, tc.want)
		}
	}
}
