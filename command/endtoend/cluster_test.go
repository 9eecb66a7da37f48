package endtoend

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/certs"
)

const encryptionConfig = `apiVersion: apiserver.config.k8s.io/v1
kind: EncryptionConfiguration
resources:
- resources: [secrets]
  providers:
  - aescbc: {keys: [{name: one, secret: MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=}]}
`

// refusedServer runs a server that must refuse to start, and returns its error.
func refusedServer(t *testing.T, dir string, args ...string) string {
	t.Helper()
	args = append([]string{"server", "--data-dir", dir, "--secure-port", "0", "--insecure-port", "0"}, args...)
	got := finish(t, command(t, "karve", args...))
	if got.code != 1 {
		t.Fatalf("exit code %d, want 1\n%s%s", got.code, got.stdout, got.stderr)
	}
	return got.stderr
}

func wantIn(t *testing.T, text string, all ...string) {
	t.Helper()
	for _, want := range all {
		if !strings.Contains(text, want) {
			t.Errorf("got %q, want %q in it", text, want)
		}
	}
}

// Two servers that start at the same moment with one token are one cluster.
func TestServersWithATokenAreOneCluster(t *testing.T) {
	long(t)
	parallel(t)
	store := start(t, t.TempDir(), append(bare, "--etcd-listen=http://127.0.0.1:0")...)
	files := t.TempDir()
	token, next := filepath.Join(files, "token"), filepath.Join(files, "next")
	karve(t, "cluster-token", "create", token)
	karve(t, "cluster-token", "create", next)
	encryption := write(t, "encryption.yaml", encryptionConfig)
	shared := append(bare, "--datastore-endpoint="+store.etcdURL(), "--kube-apiserver-arg=etcd-prefix=/shared")
	with := func(token string, more ...string) []string {
		return append(append(shared[:len(shared):len(shared)], "--cluster-token-file="+token), more...)
	}

	one := launch(t, t.TempDir(), with(token, "--encryption-provider-config="+encryption)...)
	one.poll("the record", func() error { // otherwise the second could be the first, and has no encryption
		_, err := os.Stat(certs.File(filepath.Join(one.dir, "certs"), certs.ServerCA))
		return err
	})
	two := launch(t, t.TempDir(), with(token)...)
	one.waitReady()
	two.waitReady()
	file := func(p *process, name string) []byte {
		t.Helper()
		content, err := os.ReadFile(filepath.Join(p.dir, "certs", name))
		if err != nil {
			t.Fatal(err)
		}
		return content
	}
	for _, name := range []string{"server-ca.crt", "client-ca.key", "front-proxy-ca.key", "service-account.key"} {
		if !bytes.Equal(file(one, name), file(two, name)) {
			t.Errorf("%s differs", name)
		}
	}
	if bytes.Equal(file(one, "serving.key"), file(two, "serving.key")) {
		t.Error("both servers have one serving key")
	}

	// The kubeconfig and the tokens of one server are good for the other.
	elsewhere := rest.CopyConfig(one.config())
	elsewhere.Host = two.url
	here, there := client(t, one.config()).CoreV1(), client(t, elsewhere).CoreV1()
	if _, err := here.ServiceAccounts("default").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "robot"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	robot, err := here.ServiceAccounts("default").CreateToken(t.Context(), "robot", &authenticationv1.TokenRequest{}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !accepts(t, client(t, elsewhere), robot.Status.Token) {
		t.Error("a token of the first server is refused by the second")
	}

	// The second server encrypts as the first does.
	if _, err := there.Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "hidden"}, StringData: map[string]string{"key": "value"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, err := here.Secrets("default").Get(t.Context(), "hidden", metav1.GetOptions{}); err != nil || string(got.Data["key"]) != "value" {
		t.Errorf("a Secret of the second server at the first: %v, %v", got, err)
	}
	etcd, err := clientv3.New(clientv3.Config{Endpoints: []string{store.etcdURL()}, DialTimeout: 5 * time.Second, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer etcd.Close()
	stored, err := etcd.Get(t.Context(), "/shared/secrets/default/hidden")
	if err != nil || len(stored.Kvs) != 1 || !bytes.HasPrefix(stored.Kvs[0].Value, []byte("k8s:enc:aescbc:v1:one:")) {
		t.Errorf("the Secret is not encrypted in the datastore: %v, %v", stored, err)
	}

	t.Run("others are refused", func(t *testing.T) {
		dir := t.TempDir()
		wantIn(t, refusedServer(t, dir, shared...), "--cluster-token-file", "none of its keys")
		wantIn(t, refusedServer(t, dir, with(next)...), "--cluster-token-file "+next, "is not the one of the cluster")
		if _, err := os.Stat(filepath.Join(dir, "certs")); err == nil {
			t.Error("a server that was refused has made certificates")
		}
	})

	t.Run("rotate", func(t *testing.T) {
		rotate := []string{"cluster-token", "rotate", "--datastore-endpoint", store.etcdURL(), "--config", write(t, "config.yaml", "kube-apiserver-arg: [etcd-prefix=/shared]\n"), "--cluster-token-file", token, "--new-cluster-token-file", next}
		karve(t, rotate...)
		again := finish(t, command(t, "karve", rotate...))
		wantIn(t, again.stderr, "--cluster-token-file "+token, "is not the one of the cluster")
		if again.code != 1 {
			t.Errorf("exit code %d, want 1", again.code)
		}
		if _, err := there.ConfigMaps("default").List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("a running server is disturbed: %v", err)
		}
		wantIn(t, refusedServer(t, t.TempDir(), with(token)...), "is not the one of the cluster")
	})

	// A server that was killed comes back with its directory.
	two.kill()
	late := start(t, two.dir, with(next)...)
	if got, err := client(t, late.config()).CoreV1().Secrets("default").Get(t.Context(), "hidden", metav1.GetOptions{}); err != nil || string(got.Data["key"]) != "value" {
		t.Errorf("a server that comes late reads %v, %v", got, err)
	}
}

// A server that offers its store is a server of the cluster itself, and the commands ask it.
func TestAServerOffersItsStoreToACluster(t *testing.T) {
	long(t)
	parallel(t)
	token, next := filepath.Join(t.TempDir(), "token"), filepath.Join(t.TempDir(), "next")
	karve(t, "cluster-token", "create", token)
	karve(t, "cluster-token", "create", next)
	store := start(t, t.TempDir(), append(bare, "--etcd-listen=https://127.0.0.1:0", "--cluster-token-file="+token)...)
	file := func(n certs.Name, ending string) string {
		return filepath.Join(store.dir, "certs", string(n)+ending)
	}
	other := start(t, t.TempDir(), append(bare, "--datastore-endpoint="+store.etcdURL(), "--datastore-cafile="+file(certs.EtcdCA, ".crt"),
		"--datastore-certfile="+file(certs.EtcdClient, ".crt"), "--datastore-keyfile="+file(certs.EtcdClient, ".key"), "--cluster-token-file="+token)...)
	elsewhere := rest.CopyConfig(store.config())
	elsewhere.Host = other.url
	if _, err := client(t, elsewhere).CoreV1().Namespaces().Get(t.Context(), "default", metav1.GetOptions{}); err != nil {
		t.Errorf("the first server's kubeconfig at the second: %v", err)
	}
	karve(t, "cluster-token", "rotate", "--data-dir", store.dir, "--cluster-token-file", token, "--new-cluster-token-file", next)
	wantIn(t, karve(t, "cluster-token", "rotate", "--data-dir", store.dir, "--cluster-token-file", next, "--encryption-provider-config", ""), "start them again, one at a time")
	other.stop()
	store.stop()
	wantIn(t, refusedServer(t, store.dir, append(bare, "--etcd-listen=https://127.0.0.1:0", "--cluster-token-file="+token)...), "is not the one of the cluster")
	wantIn(t, refusedServer(t, store.dir, append(bare, "--cluster-token-file="+next)...), "--cluster-token-file "+next, "--etcd-listen")
	store = start(t, store.dir, append(bare, "--etcd-listen=https://127.0.0.1:0", "--cluster-token-file="+next)...)

	// Nobody has the token any more. A server has the keys, and another server's directory has not.
	last := filepath.Join(t.TempDir(), "last")
	karve(t, "cluster-token", "create", last)
	renew := []string{"cluster-token", "rotate", "--lost", "--new-cluster-token-file", last, "--data-dir"}
	karve(t, append(renew, store.dir)...)
	joins := func() {
		t.Helper()
		other := start(t, t.TempDir(), append(bare, "--datastore-endpoint="+store.etcdURL(), "--datastore-cafile="+file(certs.EtcdCA, ".crt"),
			"--datastore-certfile="+file(certs.EtcdClient, ".crt"), "--datastore-keyfile="+file(certs.EtcdClient, ".key"), "--cluster-token-file="+last)...)
		other.stop()
	}
	joins()
	key, err := os.ReadFile(file(certs.ServiceAccount, ".key"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(file(certs.ServiceAccount, ".key")); err != nil {
		t.Fatal(err)
	}
	wantIn(t, finish(t, command(t, "karve", append(renew, store.dir)...)).stderr, "service-account.key is missing")
	if err := os.WriteFile(file(certs.ServiceAccount, ".key"), key, 0o600); err != nil {
		t.Fatal(err)
	}

	wantIn(t, finish(t, command(t, "karve", "certs", "rotate-ca", "--data-dir", store.dir)).stderr, "several servers", "--cluster-token-file")

	// The key for Secrets goes to all servers before one of them writes with it.
	secrets := func(verb string, want ...string) {
		t.Helper()
		wantIn(t, karve(t, "secrets", verb, "--data-dir", store.dir, "--cluster-token-file", last), want...)
		store.stop()
		store = start(t, store.dir, append(bare, "--etcd-listen=https://127.0.0.1:0", "--cluster-token-file="+last)...)
	}
	store.kubectl("create", "secret", "generic", "hidden", "--from-literal=key=value")
	wantIn(t, finish(t, command(t, "karve", "secrets", "enable", "--data-dir", store.dir)).stderr, "--cluster-token-file")
	secrets("enable", "only read", "one at a time", "karve secrets rotate")
	if counts, next := secretsStored(t, store.dir); counts["key-1"] != 0 || !strings.Contains(next, "karve secrets rotate") {
		t.Errorf("got %v and %q", counts, next)
	}
	secrets("rotate", "write with key-1", "karve secrets reencrypt")
	wantIn(t, karve(t, "secrets", "reencrypt", "--data-dir", store.dir, "--cluster-token-file", last), "all 1")
	joins()
	wantIn(t, finish(t, command(t, "karve", append(renew, store.dir, "--encryption-provider-config", "")...)).stderr, "default/hidden could not be read")
}

func TestClusterTokenCommands(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	karve(t, "cluster-token", "create", file)
	before, err := os.ReadFile(file)
	if err != nil || len(before) < 40 {
		t.Fatalf("got %d bytes, %v", len(before), err)
	}
	empty := t.TempDir()
	for _, tc := range []struct{ args, want []string }{
		{[]string{"create", file}, []string{file + " exists"}},
		{[]string{"create"}, []string{"takes one FILE"}},
		{[]string{"rotate", "--data-dir", empty}, []string{"--cluster-token-file", "--new-cluster-token-file"}},
		{[]string{"rotate", "--data-dir", empty, "--cluster-token-file", file, "--new-cluster-token-file", file}, []string{"no server has been started in " + empty, "--datastore-endpoint"}},
		{[]string{"rotate", "--data-dir", empty, "--lost"}, []string{"--new-cluster-token-file"}},
		{[]string{"rotate", "--data-dir", empty, "--cluster-token-file", file, "--encryption-provider-config", "/nowhere/e"}, []string{"--encryption-provider-config", "/nowhere/e"}},
	} {
		got := finish(t, command(t, "karve", append([]string{"cluster-token"}, tc.args...)...))
		if got.code != 1 {
			t.Errorf("%q: exit code %d, want 1", tc.args, got.code)
		}
		wantIn(t, got.stderr, tc.want...)
		if strings.Contains(got.stdout+got.stderr, strings.TrimSpace(string(before))) {
			t.Errorf("%q prints the secret", tc.args)
		}
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the file has changed (%v)", err)
	}
}
