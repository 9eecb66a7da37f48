package endtoend

import (
	"context"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/internal/eventually"
)

// boards are servers that share a datastore and a token, on hosts of one name.
type boards struct {
	t      *testing.T
	args   []string
	all    []*process
	leases []string    // their names, which tell the servers apart
	events chan string // the names of ConfigMaps, as a client sees them that knows the first authorities only
}

// start starts board n, or starts it again.
func (b *boards) start(n int) {
	b.t.Helper()
	dir, args := b.t.TempDir(), b.args
	if n < len(b.all) {
		before := b.all[n]
		if before.running() {
			before.stop()
		}
		dir, args = before.dir, append(slices.Clone(args), "--secure-port", before.url[strings.LastIndex(before.url, ":")+1:]) // where clients find it
	}
	p := launch(b.t, dir, args...).waitReady()
	b.all = append(b.all[:n:n], append([]*process{p}, b.all[min(n+1, len(b.all)):]...)...)
}

// noteLease notes the name of the Lease that the last board has made.
func (b *boards) noteLease() {
	b.t.Helper()
	eventually.Nil(b.t, "a Lease for each server", func() error {
		all, err := b.at(0, b.all[0].config()).CoordinationV1().Leases("kube-system").List(b.t.Context(), metav1.ListOptions{LabelSelector: "apiserver.kubernetes.io/identity"})
		if err != nil || len(all.Items) != len(b.all) {
			return fmt.Errorf("%d Leases of %d servers (%w)", len(all.Items), len(b.all), err)
		}
		for _, l := range all.Items {
			if !slices.Contains(b.leases, l.Name) {
				b.leases = append(b.leases, l.Name)
			}
		}
		return nil
	})
}

// at returns a client of board n with the authorities and the user of a configuration.
func (b *boards) at(n int, config *rest.Config) kubernetes.Interface {
	config = rest.CopyConfig(config)
	config.Host = b.all[n].url
	return client(b.t, config)
}

// watch watches ConfigMaps at one of the first two boards, and goes on at the other one when that stops. It never lists again.
func (b *boards) watch(ctx context.Context, config *rest.Config) {
	api := []kubernetes.Interface{b.at(0, config), b.at(1, config)}
	list, err := api[0].CoreV1().ConfigMaps("default").List(ctx, metav1.ListOptions{})
	if err != nil {
		b.t.Error(err)
		return
	}
	for n, at := 0, list.ResourceVersion; ctx.Err() == nil; n++ {
		watching, err := api[n%2].CoreV1().ConfigMaps("default").Watch(ctx, metav1.ListOptions{ResourceVersion: at})
		for err == nil {
			event := <-watching.ResultChan()
			m, ok := event.Object.(*corev1.ConfigMap)
			if !ok {
				err = fmt.Errorf("the stream has ended: %w", apierrors.FromObject(event.Object))
				break
			}
			at = m.ResourceVersion
			if m.Name != "kube-root-ca.crt" {
				b.events <- m.Name
			}
		}
		if text := err.Error(); ctx.Err() == nil && (strings.Contains(text, "x509") || apierrors.IsUnauthorized(err) || apierrors.IsResourceExpired(err)) {
			b.t.Errorf("the watch cannot go on: %v", err)
			return
		}
	}
}

// check lets each of the first two boards accept what any of them has signed, without intermediates as kubelets have it, and the watch see
// an object.
func (b *boards) check(what string, admin *rest.Config) {
	b.t.Helper()
	robot := rest.CopyConfig(admin)
	robot.CertData, robot.KeyData = signed(b.t, b.at(0, admin), certificatesv1.KubeAPIServerClientSignerName, &pkix.Name{CommonName: "robot"}, nil, certificatesv1.UsageClientAuth)
	for n := range 2 {
		if who, err := b.at(n, robot).AuthenticationV1().SelfSubjectReviews().Create(b.t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{}); err != nil || who.Status.UserInfo.Username != "robot" {
			b.t.Errorf("%s: a certificate at board-%d: %+v, %v", what, n, who, err)
		}
		if token := b.token(n, admin); !accepts(b.t, b.at(0, admin), token) || !accepts(b.t, b.at(1, admin), token) {
			b.t.Errorf("%s: a token of board-%d is refused", what, n)
		}
	}
	name := strings.ReplaceAll(what, " ", "-")
	if _, err := b.at(1, admin).CoreV1().ConfigMaps("default").Create(b.t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		b.t.Fatalf("%s: %v", what, err)
	}
	select {
	case got := <-b.events:
		if got != name {
			b.t.Fatalf("the watch has %s, want %s", got, name)
		}
	case <-time.After(patience):
		b.t.Fatalf("the watch does not have %s", name)
	}
}

func (b *boards) token(n int, admin *rest.Config) string {
	b.t.Helper()
	made, err := b.at(n, admin).CoreV1().ServiceAccounts("default").CreateToken(b.t.Context(), "default", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	return made.Status.Token
}

// published waits until Pods, and machines that join, trust the server's authorities in a file, and as many others as are wanted.
func (b *boards) published(admin *rest.Config, roots int, file string) {
	b.t.Helper()
	want, err := os.ReadFile(file)
	if err != nil {
		b.t.Fatal(err)
	}
	eventually.Nil(b.t, "the authorities are published", func() error {
		pods, err1 := b.at(0, admin).CoreV1().ConfigMaps("default").Get(b.t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
		nodes, err2 := b.at(0, admin).CoreV1().ConfigMaps("kube-public").Get(b.t.Context(), "cluster-info", metav1.GetOptions{})
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		kubeconfig, err := clientcmd.RESTConfigFromKubeConfig([]byte(nodes.Data["kubeconfig"]))
		if err != nil {
			return err
		}
		if got := pods.Data["ca.crt"]; strings.TrimSpace(got) != strings.TrimSpace(string(want)) {
			return fmt.Errorf("Pods trust %s, want %s", got, want)
		}
		if got := string(kubeconfig.CAData); !strings.Contains(got, strings.TrimSpace(string(want))) || strings.Count(got, "BEGIN") != 2*roots {
			return fmt.Errorf("nodes trust %d certificates, want %d", strings.Count(got, "BEGIN"), 2*roots)
		}
		return nil
	})
}

// Two servers replace their authorities and the key of tokens, and are started again one at a time. A third one is away all the time.
func TestRotateSharedKeys(t *testing.T) {
	long(t)
	parallel(t)
	token, next := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "next")
	karve(t, "cluster-token", "create", token)
	karve(t, "cluster-token", "create", next)
	endpoint := start(t, t.TempDir(), append(bare, "--etcd-listen=http://127.0.0.1:0")...).etcdURL()
	with := func(token string) []string {
		return []string{"--datastore-endpoint=" + endpoint, "--kube-apiserver-arg=etcd-prefix=/shared", "--cluster-token-file=" + token}
	}
	b := &boards{t: t, args: append(with(token), "--advertise-address=192.0.2.1"), events: make(chan string, 100)}
	for n := range 3 {
		b.start(n)
		b.noteLease()
	}
	b.all[2].kill()
	old := b.all[0].config()
	watching, done := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	defer watch.Wait()
	defer done()
	watch.Go(func() { b.watch(watching, old) })
	oldToken := b.token(0, old)
	shared := func(args []string, more ...string) []string {
		return append(slices.Concat(args, []string{"--data-dir", b.all[0].dir, "--datastore-endpoint", endpoint, "--config", write(t, "config.yaml", "kube-apiserver-arg: [etcd-prefix=/shared]\n"), "--cluster-token-file", token}), more...)
	}
	rotateCA := []string{"certs", "rotate-ca"}
	both := func(want string, more ...string) {
		t.Helper()
		wantIn(t, karve(t, shared(rotateCA, more...)...), want, "authorities")
		wantIn(t, karve(t, shared(rotateCA, append(more, "--service-account-key")...)...), want, "keys of tokens")
	}
	refuse := func(args []string, not string, want ...string) {
		t.Helper()
		got := finish(t, command(t, "karve", args...))
		wantIn(t, got.stderr, want...)
		if got.code != 1 || not != "" && strings.Contains(got.stderr, not) {
			t.Errorf("exit code %d, want 1 and not %q\n%s", got.code, not, got.stderr)
		}
	}
	ca := filepath.Join(b.all[0].dir, "certs", "server-ca.crt")
	b.check("before", old)
	refuse(shared(rotateCA, "--drop-old"), "", "nothing is being replaced")

	both("old ones still sign")
	karve(t, shared([]string{"cluster-token", "rotate"}, "--new-cluster-token-file", next)...)
	token = next
	b.args = append(with(token), "--advertise-address=192.0.2.1")
	refuse(shared(rotateCA), "", "("+b.leases[0]+")", b.leases[1], b.leases[2])
	refuse(shared(rotateCA, "--drop-old"), "", "do not sign yet")
	b.start(0)
	b.check("introduced at board 0", old)
	refuse(shared(rotateCA), b.leases[0], b.leases[1], b.leases[2])
	b.start(1)
	b.check("introduced", old)
	b.published(old, 3, ca)
	leases := b.at(0, old).CoordinationV1().Leases("kube-system")
	lost, err := leases.Get(t.Context(), b.leases[2], metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	lost.Spec.RenewTime = &metav1.MicroTime{Time: time.Now().Add(-2 * time.Hour)}
	if _, err := leases.Update(t.Context(), lost, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}

	both("are still trusted")
	refuse(shared(rotateCA, "--drop-old"), b.leases[2], b.leases[0], b.leases[1])
	b.start(0)
	b.check("switched at board 0", old)
	b.start(1)
	b.check("switched", old)
	admin := b.all[0].config()
	first, _ := pem.Decode(admin.CAData)
	admin.CAData = pem.EncodeToMemory(first)
	b.check("only the new authority known", admin)

	done()
	watch.Wait()
	both("dropped", "--drop-old")
	for n := range 2 {
		b.start(n)
	}
	both("no server trusts", "--drop-old")
	b.published(admin, 1, ca)
	trusted, err := b.at(0, admin).CoreV1().ConfigMaps("kube-system").Get(t.Context(), "extension-apiserver-authentication", metav1.GetOptions{})
	if err != nil || strings.Count(trusted.Data["client-ca-file"], "BEGIN") != 1 || strings.Count(trusted.Data["requestheader-client-ca-file"], "BEGIN") != 1 {
		t.Errorf("extension API servers trust %v (%v)", trusted, err)
	}
	b.start(2) // with the keys from before
	for n := range b.all {
		if _, err := b.at(n, admin).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("the new authorities at board-%d: %v", n, err)
		}
		if _, err := b.at(n, old).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err == nil || !strings.Contains(err.Error(), "x509") {
			t.Errorf("the old authority at board-%d: %v", n, err)
		}
		user := rest.CopyConfig(old)
		user.CAData = admin.CAData
		if _, err := b.at(n, user).CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); !apierrors.IsUnauthorized(err) {
			t.Errorf("an old certificate at board-%d: %v", n, err)
		}
		if accepts(t, b.at(n, admin), oldToken) {
			t.Errorf("an old token at board-%d is accepted", n)
		}
	}

	// The key of Secrets goes the same way.
	secrets := []string{"secrets", "rotate"}
	wantIn(t, karve(t, shared(secrets)...), "only read")
	refuse(shared(secrets), "", b.leases[0], b.leases[1], b.leases[2])
}
