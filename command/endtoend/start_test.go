package endtoend

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/internal/eventually"
)

// TestStart is a first start with no options but for the ports, and what a
// person does next.
func TestStart(t *testing.T) {
	parallel(t)
	dir := filepath.Join(t.TempDir(), "data") // karve makes it
	p := launch(t, dir)
	kubeconfigLast(t, p)
	p.waitReady()
	if want := filepath.Join(dir, "admin.kubeconfig"); p.kubeconfig != want {
		t.Errorf("kubeconfig of the ready line: got %s, want %s", p.kubeconfig, want)
	}

	t.Run("log", func(t *testing.T) {
		// Controllers are busy for a while after a first start; when the
		// default service account has its CA they have come round.
		core := client(t, p.plain()).CoreV1()
		eventually.Nil(t, "the controllers", func() error {
			_, err := core.ConfigMaps("default").Get(t.Context(), "kube-root-ca.crt", metav1.GetOptions{})
			return err
		})
		if n := strings.Count(p.stderr.String(), "\n"); n >= 15 {
			t.Errorf("a start logged %d lines, want fewer than 15:\n%s", n, p.stderr.String())
		}
		if got := p.stdout.String(); !readyText.MatchString(got) {
			t.Errorf("standard output: got %q, want the ready line and nothing else", got)
		}
	})
	t.Run("modes", func(t *testing.T) { modes(t, dir) })
	t.Run("kubectl", func(t *testing.T) { kubectls(t, p) })
	t.Run("kubeconfig", func(t *testing.T) { kubeconfigCommands(t, p) })
	t.Run("certs", func(t *testing.T) { certsCommands(t, p) })
	t.Run("quiet", func(t *testing.T) {
		p.t = t
		p.stop()
		for line := range strings.Lines(p.stderr.String()) {
			if !strings.Contains(line, "level=info") && !strings.Contains(line, "level=warning") {
				t.Errorf("nothing has gone wrong, but the log says %s", line)
			}
		}
	})
}

// kubeconfigLast looks for the kubeconfig until it is there; from that moment
// the cluster must answer, controllers and all.
func kubeconfigLast(t *testing.T, p *process) {
	t.Helper()
	p.kubeconfig = filepath.Join(p.dir, "admin.kubeconfig")
	p.poll("the kubeconfig", func() error {
		_, err := os.Stat(p.kubeconfig)
		return err
	})
	readyz(t, p)
}

// readyz asks once for /readyz, which must be ok.
func readyz(t *testing.T, p *process) {
	t.Helper()
	body, err := client(t, p.config()).Discovery().RESTClient().Get().AbsPath("/readyz").Param("verbose", "").DoRaw(within(t, patience))
	if err != nil {
		t.Errorf("/readyz: %v\n%s", err, body)
	}
	for _, check := range []string{"[+]controllers ok", "[+]scheduler ok"} {
		if !strings.Contains(string(body), check) {
			t.Errorf("/readyz: got\n%s\nwant a line %q", body, check)
		}
	}
}

// modes checks that nobody else can read anything below dir.
func modes(t *testing.T, dir string) {
	seen := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) { // a journal of the database
			return nil
		} else if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return nil // gone in the meantime
		}
		seen++
		want := fs.FileMode(0o600)
		if d.IsDir() {
			want = 0o700
		}
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s: mode %o, want %o", path, got, want)
		}
		return nil
	})
	if err != nil || seen < 20 {
		t.Errorf("walk the data directory: %v after %d files, want 20 at least", err, seen)
	}
}

// kubectls runs kubectl under both of its names against both listeners.
func kubectls(t *testing.T, p *process) {
	if got, want := p.kubectl("get", "namespaces", "-o", "name"), "namespace/kube-system\n"; !strings.Contains(got, want) {
		t.Errorf("karve kubectl get namespaces: got %q, want %q in it", got, want)
	}
	// Installed under the name kubectl, whatever is before the name.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "kubectl")
	if err := os.Symlink(self, link); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, link, "--server", p.insecure, "get", "--raw", "/readyz")
	cmd.Path = link
	if got := succeed(t, cmd); got != "ok" {
		t.Errorf("kubectl get --raw /readyz: got %q, want ok", got)
	}
	cmd = command(t, "karve", "kubectl", "get", "no-such-kind")
	cmd.Env = append(cmd.Env, "KUBECONFIG="+p.kubeconfig)
	if got := finish(t, cmd); got.code != 1 || !strings.Contains(got.stderr, "no-such-kind") {
		t.Errorf("kubectl get no-such-kind: got code %d and %q, want 1 and the kind named", got.code, got.stderr)
	}
	cmd = command(t, "karve", "kubectl", "apply", "--server-side", "-f", "-")
	cmd.Env = append(cmd.Env, "KUBECONFIG="+p.kubeconfig)
	cmd.Stdin = strings.NewReader("{apiVersion: v1, kind: ConfigMap, metadata: {name: from-stdin}, data: {k: v}}")
	succeed(t, cmd)
	if got := p.kubectl("get", "configmap", "from-stdin", "-o", "jsonpath={.data.k}"); got != "v" {
		t.Errorf("what kubectl apply wrote: got %q, want v", got)
	}
}

func kubeconfigCommands(t *testing.T, p *process) {
	want, err := os.ReadFile(p.kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	if got := karve(t, "kubeconfig", "--data-dir", p.dir); got != string(want) {
		t.Errorf("karve kubeconfig: got %q, want the file %q", got, want)
	}

	merge := command(t, "karve", "kubeconfig", "--data-dir", p.dir, "--merge")
	home := t.TempDir()
	merge.Env = append(merge.Env, "HOME="+home)
	path := filepath.Join(home, ".kube", "config")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	const other = "{apiVersion: v1, kind: Config, current-context: other, contexts: [{name: other, context: {cluster: other, user: other}}], " +
		"clusters: [{name: other, cluster: {server: https://other}}], users: [{name: other, user: {token: t}}]}"
	if err := os.WriteFile(path, []byte(other), 0o640); err != nil {
		t.Fatal(err)
	}
	if got := finish(t, merge); got.code != 0 || !strings.Contains(got.stdout, certs.DefaultContext) || !strings.Contains(got.stdout, path) ||
		!strings.Contains(got.stderr, "karve: warning: other users could read "+path) {
		t.Errorf("karve kubeconfig --merge: got %+v, want the context %q in %s, and a warning", got, certs.DefaultContext, path)
	}
	merged, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if merged.CurrentContext != "other" || merged.Contexts["other"] == nil {
		t.Errorf("merged: current context %q, contexts %v; want the user's own, other, to be as it was", merged.CurrentContext, merged.Contexts)
	}
	cmd := command(t, "karve", "kubectl", "--context", certs.DefaultContext, "get", "--raw", "/readyz")
	cmd.Env = append(cmd.Env, "KUBECONFIG="+path)
	if got := succeed(t, cmd); got != "ok" {
		t.Errorf("by the merged context: got %q, want ok", got)
	}
}

func certsCommands(t *testing.T, p *process) {
	list := func() map[certs.Name]certs.Info {
		t.Helper()
		var infos []certs.Info
		if err := json.Unmarshal([]byte(karve(t, "certs", "list", "-o", "json", "--data-dir", p.dir)), &infos); err != nil {
			t.Fatal(err)
		}
		byName := map[certs.Name]certs.Info{}
		for _, info := range infos {
			if info.Problem != "" {
				t.Errorf("%s: %s", info.Name, info.Problem)
			}
			byName[info.Name] = info
		}
		return byName
	}
	before := list()
	if got, want := len(before), len(certs.Names())-3; got != want {
		t.Errorf("karve certs list: got %d entries, want %d: all but etcd's", got, want)
	}
	if got := karve(t, "certs", "list", "--data-dir", p.dir); !strings.Contains(got, "\nserving ") {
		t.Errorf("karve certs list: got %q, want a line for serving", got)
	}

	// A watch that is open sees nothing of a renewal.
	watch, err := client(t, p.config()).CoreV1().Namespaces().Watch(within(t, patience), metav1.ListOptions{FieldSelector: "metadata.name=after-renewal"})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	old := serialOf(t, p, "")
	if got := karve(t, "certs", "renew", "--data-dir", p.dir); !strings.Contains(got, "renewed serving\n") || !strings.Contains(got, "renewed admin\n") || strings.Contains(got, "-ca\n") {
		t.Errorf("karve certs renew: got %q, want every certificate, and no authority", got)
	}
	eventually.Nil(t, "the server to show its new certificate", func() error {
		if serial := serialOf(t, p, ""); serial == old {
			return fmt.Errorf("it still is %s", serial)
		}
		return nil
	})
	list()
	name := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "after-renewal"}}
	if _, err := client(t, p.config()).CoreV1().Namespaces().Create(t.Context(), name, metav1.CreateOptions{}); err != nil {
		t.Fatalf("with the new kubeconfig: %v", err)
	}
	if event, open := <-watch.ResultChan(); !open || event.Type != "ADDED" {
		t.Errorf("the watch opened before the renewal: got %v, open %v; want ADDED", event, open)
	}
	// And the controllers, whose certificate is another one now, go on.
	eventually.Nil(t, "the controllers to see a new namespace", func() error {
		_, err := client(t, p.plain()).CoreV1().ServiceAccounts(name.Name).Get(t.Context(), "default", metav1.GetOptions{})
		return err
	})
}
