package endtoend

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/clientcmd"
)

// The authorities of a running server are replaced: a watch goes on, and an old kubeconfig works until the old ones are dropped.
func TestRotateCA(t *testing.T) {
	long(t)
	parallel(t)
	p := start(t, t.TempDir())
	kubeconfig, err := os.ReadFile(p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	old := write(t, "old.kubeconfig", string(kubeconfig))
	oldWorks := func(want bool) {
		t.Helper()
		got := finish(t, command(t, "karve", "kubectl", "--kubeconfig", old, "get", "namespaces"))
		if got.code == 0 != want {
			t.Errorf("the old kubeconfig: exit code %d, want it to work: %v\n%s", got.code, want, got.stderr)
		}
		if !want {
			wantIn(t, got.stderr, "x509: certificate signed by unknown authority")
		}
	}
	rotate := []string{"certs", "rotate-ca", "--data-dir", p.dir}
	drop := append(rotate, "--drop-old")
	refuse := func(args []string, want ...string) {
		t.Helper()
		got := finish(t, command(t, "karve", args...))
		wantIn(t, got.stderr, want...)
		if got.code != 1 {
			t.Errorf("%q: exit code %d, want 1", args, got.code)
		}
	}
	restart := func() {
		t.Helper()
		p.stop()
		p = start(t, p.dir, "--secure-port", p.url[strings.LastIndex(p.url, ":")+1:]) // where the kubeconfigs find it
	}
	refuse(drop, "nothing is being replaced")
	watching, err := client(t, p.config()).CoreV1().Namespaces().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer watching.Stop()
	wantIn(t, karve(t, rotate...), "replaced client-ca", "Next: start the server again", "--drop-old")
	wantIn(t, karve(t, rotate...), "replaced already")
	if _, err := client(t, p.config()).CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "seen"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for seen := false; !seen; {
		event := <-watching.ResultChan()
		n, ok := event.Object.(*corev1.Namespace)
		if !ok {
			t.Fatalf("the watch reports %+v", event)
		}
		seen = n.Name == "seen"
	}
	oldWorks(true)
	refuse(drop, "start it again first")
	restart()
	oldWorks(true)
	trusted := func(want int) *corev1.ConfigMap {
		t.Helper()
		m, err := client(t, p.config()).CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
		if err != nil || strings.Count(m.Data["client-ca-file"], "BEGIN") != want || strings.Count(m.Data["requestheader-client-ca-file"], "BEGIN") != want {
			t.Fatalf("extension API servers trust %v (%v), want %d authorities of each kind", m, err, want)
		}
		return m
	}
	both := trusted(3)
	// A node renews its Lease with an old certificate, which is an administrator's here.
	renewLease(t, old)
	refuse(drop, "locked out at once", ": late. ", "--force")
	oldWorks(true)
	renewLease(t, p.kubeconfig)
	wantIn(t, karve(t, drop...), "dropped the old client-ca")
	oldWorks(false)
	trusted(1)
	// A run that is killed after it has dropped them leaves this, and the next one goes on.
	restart()
	both.ResourceVersion, both.UID = "", ""
	if _, err := client(t, p.config()).CoreV1().ConfigMaps("kube-system").Update(t.Context(), both, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	trusted(3)
	karve(t, drop...)
	trusted(1)
	refuse(drop, "nothing is being replaced")
	restart()
	p.kubectl("get", "namespaces")
	oldWorks(false)

	token, err := client(t, p.config()).CoreV1().ServiceAccounts("default").CreateToken(t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	authenticated := func(want bool) {
		t.Helper()
		if got := accepts(t, client(t, p.config()), token.Status.Token); got != want {
			t.Errorf("a token of the old key: got %v, want %v", got, want)
		}
	}
	refuse(append(drop, "--service-account-key"), "nothing is being replaced")
	wantIn(t, karve(t, append(rotate, "--service-account-key")...), "replaced service-account")
	refuse(append(drop, "--service-account-key"), "start it again first")
	restart()
	authenticated(true)
	wantIn(t, karve(t, append(drop, "--service-account-key")...), "dropped the old service-account")
	restart()
	authenticated(false)
}

// renewLease renews the Lease of the node "late" as the user of a kubeconfig.
func renewLease(t *testing.T, kubeconfig string) {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "late"}, "spec": {"leaseDurationSeconds": 3600, "renewTime": %q}}`,
		time.Now().UTC().Format(metav1.RFC3339Micro))
	if _, err := client(t, config).CoordinationV1().Leases("kube-node-lease").Patch(t.Context(), "late", types.ApplyPatchType, []byte(text), metav1.PatchOptions{FieldManager: "kubelet"}); err != nil {
		t.Fatal(err)
	}
}
