package addons

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/utils/ptr"
)

// The objects are kubeadm's; the settings decide what is in them.
func TestObjects(t *testing.T) {
	v4 := Settings{Server: "https://192.0.2.1:6443", ServiceRange: "10.96.0.0/12", ClusterCIDR: "10.244.0.0/16", ClusterDomain: "k8s.example.org", Version: "v1.2.3"}
	v6, named, changed := v4, v4, v4
	v6.Server, v6.ServiceRange, v6.ClusterCIDR = "https://[2001:db8::1]:6443", "fd00:10:96::/112", "fd00:10:244::/56,10.244.0.0/16"
	named.Server, named.ServiceRange = "https://api.example.org", "fd00:10:96::/112"
	changed.ImageRepository, changed.ProxyMode, changed.Replicas = "registry.example.org/k8s", "nftables", ptr.To[int32](0)
	image := v4
	image.Image = "registry.example.org/mine:1"
	for _, tc := range []struct {
		addon    string
		settings Settings
		want     []string
	}{
		{KubeProxy, v4, []string{"server: https://192.0.2.1:6443\n", "bindAddress: 0.0.0.0\n", "clusterCIDR: 10.244.0.0/16\n", "mode: iptables\n", "image: registry.k8s.io/kube-proxy:v1.2.3\n", "addons.karve/configuration: sha256:"}},
		{KubeProxy, v6, []string{"server: https://[2001:db8::1]:6443\n", "bindAddress: '::'\n", "clusterCIDR: fd00:10:244::/56,10.244.0.0/16\n"}},
		{KubeProxy, named, []string{"server: https://api.example.org:443\n", "bindAddress: '::'\n"}},
		{KubeProxy, changed, []string{"image: registry.example.org/k8s/kube-proxy:v1.2.3\n", "mode: nftables\n"}},
		{KubeProxy, image, []string{"image: registry.example.org/mine:1\n"}},
		{CoreDNS, v4, []string{"clusterIP: 10.96.0.10\n", "kubernetes k8s.example.org in-addr.arpa", "image: registry.k8s.io/coredns/coredns:v", "replicas: 2\n"}},
		{CoreDNS, v6, []string{"clusterIP: fd00:10:96::a\n"}},
		{CoreDNS, changed, []string{"image: registry.example.org/k8s/coredns:v", "replicas: 0\n"}},
		{CoreDNS, image, []string{"image: registry.example.org/mine:1\n"}},
	} {
		objects, err := objectsOf(tc.addon, tc.settings)
		if err != nil {
			t.Fatal(err)
		}
		text, err := File(tc.addon, tc.settings, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range tc.want {
			if !strings.Contains(strings.ReplaceAll(string(text), `"`, "'"), want) {
				t.Errorf("%s of %+v: want %q in\n%s", tc.addon, tc.settings, want, text)
			}
		}
		for _, o := range objects {
			if !slices.Contains(order, o.GetKind()) {
				t.Errorf("%s has no place in the order", o.GetKind())
			}
		}
	}
}

// Who copies the images of the list has those of the objects.
func TestImages(t *testing.T) {
	for _, repository := range []string{"", "registry.example.org/k8s"} {
		s := Settings{Server: "https://192.0.2.1:6443", ServiceRange: "10.96.0.0/12", Version: "v1.2.3", ImageRepository: repository}
		images := Images(s)
		if len(images) != 3 || !strings.Contains(images[2], "/pause:") {
			t.Fatalf("got %q", images)
		}
		for i, name := range []string{KubeProxy, CoreDNS} {
			if text, err := File(name, s, false); err != nil || !strings.Contains(string(text), "image: "+images[i]+"\n") {
				t.Errorf("%s does not have the image %s (%v):\n%s", name, images[i], err, text)
			}
		}
	}
}

// kube-proxy's Pods are replaced if only the server's address changes.
func TestChecksum(t *testing.T) {
	sum := func(server string) string {
		t.Helper()
		objects, err := objectsOf(KubeProxy, Settings{Server: server, ServiceRange: "10.96.0.0/12", Version: "v1.2.3"})
		if err != nil {
			t.Fatal(err)
		}
		s, _, _ := unstructured.NestedString(objects[len(objects)-1].Object, "spec", "template", "metadata", "annotations", configurationSum)
		return s
	}
	if a, b := sum("https://192.0.2.1"), sum("https://192.0.2.2"); a == "" || a == b || a != sum("https://192.0.2.1:443") {
		t.Errorf("got %q and %q", a, b)
	}
}

func TestEditedFile(t *testing.T) {
	text, err := File(CoreDNS, Settings{ServiceRange: "10.96.0.0/12", Version: "v1.2.3"}, false)
	if err != nil {
		t.Fatal(err)
	}
	for edited, want := range map[string]bool{
		string(text): false,
		strings.Replace(string(text), "replicas: 2", "replicas: 3", 1): true,
		string(text) + "\n": true,
		string(text[bytes.Index(text, []byte("apiVersion")):]): true,
		"": true,
	} {
		if got := Edited([]byte(edited)); got != want {
			t.Errorf("got %v, want %v for\n%s", got, want, edited)
		}
	}
}

func TestServerURL(t *testing.T) {
	for _, good := range []string{"https://192.0.2.1:6443", "https://[2001:db8::1]:6443", "https://api.example.org", "https://board"} {
		if _, err := parseServer(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"", "https://", "http://192.0.2.1", "https://a b:99999/x y", "https://a:99999", "https://a:0", "https://a/x", "https://a?x", "https://u:p@a", "https://a#b",
		"https://localhost:6443", "https://127.0.0.1", "https://[::1]:6443", "https://[::ffff:127.0.0.1]", "https://0.0.0.0:6443", "https://a_b"} {
		if _, err := parseServer(bad); err == nil {
			t.Errorf("%q: got no error", bad)
		}
	}
}

// kube-proxy gets the address in cluster-info.
func TestAdvertisedServer(t *testing.T) {
	info := func(kubeconfig string) runtime.Object {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-public", Name: "cluster-info"}, Data: map[string]string{"kubeconfig": kubeconfig}}
	}
	const cluster = "apiVersion: v1\nkind: Config\nclusters: [{name: '', cluster: {server: 'https://192.0.2.7:6443'}}]"
	for _, tc := range []struct {
		name    string
		objects []runtime.Object
		want    string
		wrong   string // in the error
	}{
		{"cluster-info", []runtime.Object{info(cluster)}, "https://192.0.2.7:6443", ""},
		{"one that no machine can join with", []runtime.Object{info("{")}, "", "use --server"},
		{"nothing", nil, "", "use --server"},
	} {
		got, err := advertised(t.Context(), fake.NewClientset(tc.objects...))
		if got != tc.want || tc.wrong == "" && err != nil || tc.wrong != "" && (err == nil || !strings.Contains(err.Error(), tc.wrong)) {
			t.Errorf("%s: got %q, %v, want %q, an error with %q", tc.name, got, err, tc.want, tc.wrong)
		}
	}
}
