package endtoend

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/eventually"
)

// freeAddress is one that nobody has at the moment. etcd and kube-apiserver do not
// tell which one they got.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestEtcdAndKubeAPIServer runs the two programs with what envtest gives them. What a
// cluster is born with is written in one transaction; a second kube-apiserver on the
// same etcd has what the first one had, and, if asked to, controllers and a scheduler.
func TestEtcdAndKubeAPIServer(t *testing.T) {
	parallel(t)
	dir, url := t.TempDir(), "http://"+freeAddress(t)
	storage := launchAs(t, "etcd", nil, "--advertise-client-urls="+url, "--data-dir="+filepath.Join(dir, "etcd"),
		"--listen-client-urls="+url, "--listen-peer-urls=http://"+freeAddress(t), "--unsafe-no-fsync=true")
	storage.poll("/health", func() error {
		resp, err := http.Get(url + "/health")
		if err == nil {
			resp.Body.Close()
		}
		return err
	})
	pki := filepath.Join(dir, "pki")
	store, _, err := certs.Ensure(certs.Config{Dir: pki, ServiceIPs: []net.IP{net.IPv4(10, 0, 0, 1)}, NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	_, port, _ := net.SplitHostPort(address)
	key := store.KeyFile(certs.ServiceAccount)
	args := []string{"--etcd-servers=" + url, "--bind-address=127.0.0.1", "--secure-port=" + port,
		"--cert-dir=" + dir, "--tls-cert-file=" + store.CertFile(certs.Serving), "--tls-private-key-file=" + store.KeyFile(certs.Serving),
		"--client-ca-file=" + store.CertFile(certs.ClientCA), "--authorization-mode=RBAC", "--allow-privileged=true",
		"--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.0.0.0/24",
		"--service-account-issuer=https://" + address + "/", "--service-account-key-file=" + key, "--service-account-signing-key-file=" + key}
	api, err := kubernetes.NewForConfig(fast(&rest.Config{Host: "https://" + address, TLSClientConfig: rest.TLSClientConfig{
		CAFile: store.CertFile(certs.ServerCA), CertFile: store.CertFile(certs.Admin), KeyFile: store.KeyFile(certs.Admin)}}))
	if err != nil {
		t.Fatal(err)
	}
	readyz := func(p *process) (text string) {
		t.Helper()
		p.poll("/readyz", func() error {
			body, err := api.Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "").DoRaw(within(t, patience))
			text = string(body)
			return err
		})
		return text
	}

	server := launchAs(t, "kube-apiserver", nil, args...)
	if text := readyz(server); strings.Contains(text, "[+]controllers") {
		t.Errorf("has controllers: %s", text)
	}
	bornTogether(t, url)
	ctx := within(t, patience)
	if _, err := api.CoreV1().ConfigMaps("default").Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "first"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	server.stop()

	// What a killed one leaves has keys. The next one removes it.
	temp := t.TempDir()
	controlling := []string{"KARVE_CONTROLLERS=1", "TMPDIR=" + temp, "TMP=" + temp}
	server = launchAs(t, "kube-apiserver", controlling, args...)
	readyz(server)
	server.kill()
	left, err := os.ReadDir(temp)
	if err != nil || len(left) != 1 {
		t.Errorf("a killed kube-apiserver has left %v, %v; want one directory", left, err)
	}
	server = launchAs(t, "kube-apiserver", controlling, args...)
	for _, check := range []string{"[+]controllers ok", "[+]scheduler ok"} {
		if text := readyz(server); !strings.Contains(text, check) {
			t.Errorf("%s does not say %q", text, check)
		}
	}
	if _, err := api.CoreV1().ConfigMaps("default").Get(ctx, "first", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	replicas, labels := int32(2), map[string]string{"app": "test"}
	deployment := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Spec: appsv1.DeploymentSpec{
		Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "test", Image: "example.org/test"}}}},
	}}
	if _, err := api.AppsV1().Deployments("default").Create(ctx, deployment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually.Nil(t, "the deployment's pods, which no node can run", func() error {
		pods, err := api.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=test"})
		if err != nil || len(pods.Items) != 2 {
			return fmt.Errorf("%d pods, %v", len(pods.Items), err)
		}
		for _, pod := range pods.Items {
			if len(pod.Status.Conditions) == 0 || pod.Status.Conditions[0].Reason != "Unschedulable" {
				return fmt.Errorf("%s: the scheduler has not looked at it", pod.Name)
			}
		}
		return nil
	})
	server.stop()
	storage.stop()
	if left, err := os.ReadDir(temp); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// bornTogether looks for the revision at which the namespaces and roles were made.
func bornTogether(t *testing.T, url string) {
	t.Helper()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{url}, Logger: zap.NewNop()})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var all []int64
	for _, prefix := range []string{"/registry/namespaces/", "/registry/clusterroles/", "/registry/prioritylevelconfigurations/"} {
		resp, err := client.Get(within(t, patience), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range resp.Kvs {
			if all = append(all, kv.CreateRevision); kv.CreateRevision != all[0] {
				t.Errorf("%s was made at revision %d, the first namespace at %d", kv.Key, kv.CreateRevision, all[0])
			}
		}
	}
	if len(all) < 50 {
		t.Errorf("%d objects, want all that a cluster is born with", len(all))
	}
}

// Mistakes in what the programs are given are told in a line, under their names.
func TestFaceMistakes(t *testing.T) {
	t.Parallel()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	_, port, _ := net.SplitHostPort(taken.Addr().String())
	for _, test := range []struct {
		program, variable string
		args, want        []string
	}{
		{"etcd", "", []string{"--data-bir=x"}, []string{"etcd (karve): etcd has no flag --data-bir; did you mean --data-dir?"}},
		{"kube-apiserver", "", []string{"--etcd-server=x"}, []string{"kube-apiserver (karve): kube-apiserver has no flag --etcd-server; did you mean --etcd-servers?"}},
		{"kube-apiserver", "", []string{"--nonsensical-flag"}, []string{"no flag --nonsensical-flag (see kube-apiserver --help)"}},
		{"kube-apiserver", "", []string{"serve"}, []string{"flags only", "serve"}},
		{"kube-apiserver", "", []string{"--cert-dir=" + t.TempDir()}, []string{"--etcd-servers must be specified", "service-account-issuer is a required flag"}},
		{"kube-apiserver", "", []string{"--feature-gates=Nonsense=true"}, []string{"Nonsense"}},
		{"kube-apiserver", "", []string{"--bind-address=127.0.0.1", "--secure-port=" + port}, []string{"--secure-port " + port, "in use"}},
		{"kube-apiserver", "KARVE_CONTROLLERS=perhaps", nil, []string{`KARVE_CONTROLLERS="perhaps": want 1 or 0`}},
	} {
		cmd := command(t, test.program, test.args...)
		cmd.Env = append(cmd.Env, test.variable)
		got := finish(t, cmd)
		if got.code != 1 || got.stdout != "" {
			t.Errorf("%s %v: exit code %d and %q, want 1 and an error", test.program, test.args, got.code, got.stdout)
		}
		for _, want := range test.want {
			if !strings.Contains(got.stderr, want) {
				t.Errorf("%s %v: %q does not say %q", test.program, test.args, got.stderr, want)
			}
		}
	}
}

// What envtest reads of --help, and others of --version.
func TestFaceHelp(t *testing.T) {
	t.Parallel()
	for program, want := range map[string][]string{
		"etcd":           {"\n  --unsafe-no-fsync\n", "\n  --data-dir directory\n"},
		"kube-apiserver": {"\nEtcd flags:\n", "\n      --etcd-servers strings ", "\n      --service-cluster-ip-range string "},
	} {
		help := succeed(t, command(t, program, "--help"))
		for _, line := range want {
			if !strings.Contains(help, line) {
				t.Errorf("%s --help has no %q", program, line)
			}
		}
		if strings.Contains(help, "--insecure-port") {
			t.Errorf("%s --help has --insecure-port, which envtest would use", program)
		}
	}
	if got := succeed(t, command(t, "etcd", "--version")); !strings.HasPrefix(got, "etcd Version: 3.") {
		t.Errorf("etcd --version: %s", got)
	}
	if got := succeed(t, command(t, "kube-apiserver", "--version")); !strings.HasPrefix(got, "Kubernetes v1.") {
		t.Errorf("kube-apiserver --version: %s", got)
	}
}

// It can be stopped while it waits for an etcd that is not there.
func TestKubeAPIServerWithoutEtcd(t *testing.T) {
	long(t)
	parallel(t)
	key := serviceAccountKey(t)
	p := launchAs(t, "kube-apiserver", nil, "--etcd-servers=http://"+freeAddress(t), "--secure-port="+strings.Split(freeAddress(t), ":")[1], "--bind-address=127.0.0.1",
		"--service-cluster-ip-range=10.0.0.0/24", "--cert-dir="+t.TempDir(), "--service-account-issuer=https://x", "--authorization-mode=RBAC",
		"--service-account-key-file="+key, "--service-account-signing-key-file="+key)
	p.poll("a word about the etcd", func() error {
		if !strings.Contains(p.stderr.String(), "waiting for the datastore at http://") {
			return errors.New("there is none")
		}
		return nil
	})
	p.stop()
}

func serviceAccountKey(t *testing.T) string {
	t.Helper()
	store, _, err := certs.Ensure(certs.Config{Dir: t.TempDir(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	return store.KeyFile(certs.ServiceAccount)
}

// assetNames are the programs that envtest looks for.
var assetNames = []string{"kube-apiserver", "etcd", "kubectl"}

func TestEnvtestAssets(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new", "bin")
	for range 2 { // what is ours is made anew
		if got, want := karve(t, "envtest-assets", "--dir", dir), "export KUBEBUILDER_ASSETS="+dir+"\n"; got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	if got := karve(t, "envtest-assets", "--dir", dir, "--path"); got != dir+"\n" {
		t.Errorf("--path: got %q, want the directory", got)
	}
	for _, name := range assetNames {
		cmd := command(t, name, "--help")
		cmd.Path = filepath.Join(dir, name)
		if help := succeed(t, cmd); !strings.Contains(help, name) {
			t.Errorf("%s --help: %s", name, help)
		}
	}

	// A file of somebody else's stays, and with it all others.
	foreign := filepath.Join(dir, "kubectl")
	if err := errors.Join(os.Remove(foreign), os.Remove(filepath.Join(dir, "etcd")), os.WriteFile(foreign, []byte("#!/bin/sh\n"), 0o755)); err != nil {
		t.Fatal(err)
	}
	got := finish(t, command(t, "karve", "envtest-assets", "--dir", dir))
	if want := foreign + " is there and is not karve"; got.code != 1 || !strings.Contains(got.stderr, want) || !strings.Contains(got.stderr, "--force") {
		t.Errorf("exit code %d, %q; want 1 and %q", got.code, got.stderr, want)
	}
	if _, err := os.Lstat(filepath.Join(dir, "etcd")); !os.IsNotExist(err) {
		t.Errorf("after a refusal, etcd is there: %v", err)
	}
	karve(t, "envtest-assets", "--dir", dir, "--force")
	if target, err := os.Readlink(foreign); err != nil {
		t.Errorf("with --force: %s, %v", target, err)
	}

	full := t.TempDir()
	if err := os.Mkdir(filepath.Join(full, "etcd"), 0o700); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, finish(t, command(t, "karve", "envtest-assets", "--dir", full)), "is no program")
	wantProblems(t, finish(t, command(t, "karve", "envtest-assets")), "--dir: needs a directory")

	// A copy does not need the program that made it, nor its place.
	if runtime.GOOS == "linux" {
		moved := filepath.Join(t.TempDir(), "moved")
		karve(t, "envtest-assets", "--dir", dir, "--copy")
		if err := os.Rename(dir, moved); err != nil {
			t.Fatal(err)
		}
		for _, name := range assetNames {
			if target, err := filepath.EvalSymlinks(filepath.Join(moved, name)); err != nil || filepath.Dir(target) != moved {
				t.Errorf("%s is %s, %v", name, target, err)
			}
		}
		if info, err := os.Lstat(filepath.Join(moved, "kube-apiserver")); err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0 {
			t.Errorf("the copy: %v, %v", info, err)
		}
	}
}

// The suites of a project share a directory, and go test runs them at once.
func TestEnvtestAssetsAtOnce(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "bin")
	mine := filepath.Join(dir, "kubectl.new") // no file of karve's
	if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(mine, []byte("mine"), 0o600)); err != nil {
		t.Fatal(err)
	}
	var calls sync.WaitGroup
	for range 8 {
		cmd := command(t, "karve", "envtest-assets", "--dir", dir)
		calls.Go(func() {
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	calls.Wait()
	entries, err := os.ReadDir(dir)
	if text, read := os.ReadFile(mine); err != nil || read != nil || string(text) != "mine" || len(entries) != 1+len(assetNames) {
		t.Errorf("%v in the directory, %v; kubectl.new has %q, %v", entries, err, text, read)
	}
}
