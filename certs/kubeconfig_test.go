package certs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func mustLoad(t *testing.T, path string) *clientcmdapi.Config {
	t.Helper()
	c, err := clientcmd.LoadFromFile(path)
	fatal(t, err)
	return c
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	fatal(t, err)
	return string(data)
}

func TestWriteKubeconfig(t *testing.T) {
	b := newTestbed(t)
	s, _ := b.ensure(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "deep", "kubeconfig")
	k := s.Kubeconfig(Admin, "https://192.168.1.5:6443")
	fatal(t, WriteKubeconfig(path, k))
	for p, want := range map[string]os.FileMode{path: 0o600, filepath.Dir(path): 0o700, filepath.Join(dir, "new"): 0o700} {
		if info, err := os.Stat(p); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want %v", p, info.Mode(), err, want)
		}
	}
	rest, err := clientcmd.BuildConfigFromFlags("", path)
	fatal(t, err)
	if rest.Host != k.Server || string(rest.CAData) != read(t, s.CertFile(ServerCA)) || string(rest.CertData) != read(t, s.CertFile(Admin)) || string(rest.KeyData) != read(t, s.KeyFile(Admin)) {
		t.Errorf("what client-go reads is not what was meant: %v", rest)
	}
	c := mustLoad(t, path)
	if c.CurrentContext != DefaultContext || c.Contexts[DefaultContext].Cluster != DefaultContext {
		t.Errorf("contexts %v", c.Contexts)
	}

	// Same content: not written, unless others can read it.
	old, err := os.Stat(path)
	fatal(t, err)
	fatal(t, WriteKubeconfig(path, k))
	if info, _ := os.Stat(path); !os.SameFile(info, old) {
		t.Error("the same content was written again")
	}
	fatal(t, errors.Join(os.Chmod(path, 0o644), WriteKubeconfig(path, k)))
	if info, _ := os.Stat(path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}

	// Errors leave the file.
	before := read(t, path)
	if err := WriteKubeconfig(path, Kubeconfig{}); err == nil {
		t.Error("no error without a server")
	}
	if err := WriteKubeconfig(path, Kubeconfig{Server: "https://x", CAFile: filepath.Join(dir, "nothing")}); err == nil {
		t.Error("no error without the CA")
	}
	if err := WriteKubeconfig(path, Kubeconfig{Server: "https://x", CertFile: s.CertFile(Admin), KeyFile: s.KeyFile(Scheduler)}); !errors.Is(err, ErrMismatch) {
		t.Errorf("a pair that does not match: %v", err)
	}
	if read(t, path) != before {
		t.Error("an error changed the file")
	}
	if err := WriteKubeconfig(path, Kubeconfig{Server: "http://127.0.0.1:8080"}); err != nil {
		t.Errorf("insecure: %v", err)
	}
	both, ca := filepath.Join(dir, "both"), read(t, s.CertFile(ServerCA))
	fatal(t, os.WriteFile(both, []byte("ours\n"+read(t, s.KeyFile(ServerCA))+ca), 0o600))
	if err := WriteKubeconfig(path, Kubeconfig{Server: k.Server, CAFile: both}); err != nil || string(mustLoad(t, path).Clusters[DefaultContext].CertificateAuthorityData) != ca {
		t.Errorf("the kubeconfig has more than the certificate of a file with a key (%v)", err)
	}
	if err := WriteKubeconfig(dir, k); err == nil {
		t.Error("wrote over a directory")
	}
}

// Only a client on the server's own machine goes without compression.
func TestSetServer(t *testing.T) {
	for server, want := range map[string]bool{
		"https://127.0.0.1:6443": true, "https://127.1.2.3:6443": true, "https://[::1]:6443": true, "http://localhost:8080": true,
		"https://192.0.2.5:6443": false, "https://[2001:db8::1]:6443": false, "https://localhost.example:6443": false, "https://karve.example": false, "": false,
	} {
		cluster := &clientcmdapi.Cluster{DisableCompression: !want}
		if SetServer(cluster, server); cluster.Server != server || cluster.DisableCompression != want {
			t.Errorf("%q: disable-compression is %t, want %t", server, cluster.DisableCompression, want)
		}
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	fatal(t, WriteKubeconfig(path, Kubeconfig{Server: "http://127.0.0.1:8080", Advertised: "https://karve.example"}))
	clusters := mustLoad(t, path).Clusters
	if !clusters[DefaultContext].DisableCompression || clusters[AdvertisedContext].DisableCompression {
		t.Errorf("the kubeconfig has %+v and %+v", clusters[DefaultContext], clusters[AdvertisedContext])
	}
}

const others = `# mine
apiVersion: v1
kind: Config
current-context: work
clusters:
- name: work
  cluster: {server: "https://work:6443", certificate-authority: rel/ca.crt, proxy-url: "http://proxy:1"}
contexts:
- name: work
  context: {cluster: work, user: me, namespace: prod}
users:
- name: me
  user:
    exec: {apiVersion: client.authentication.k8s.io/v1, command: login, interactiveMode: Never}
`

// Without a name, nothing is written into the working directory.
func TestMergeIntoNoFile(t *testing.T) {
	t.Chdir(t.TempDir())
	t.Setenv("KUBECONFIG", "/nowhere"+string(os.PathListSeparator))
	if got, err := MergeKubeconfig(t.Context(), "", nil, MergeOptions{}); err == nil || !strings.Contains(err.Error(), "name one") {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestMergeKubeconfig(t *testing.T) {
	b := newTestbed(t)
	s, _ := b.ensure(t)
	dir := t.TempDir()
	src := filepath.Join(dir, "karve.yaml")
	k := s.Kubeconfig(Admin, "https://127.0.0.1:6443")
	fatal(t, WriteKubeconfig(src, k))

	t.Run("new file", func(t *testing.T) {
		dst := filepath.Join(dir, "home", ".kube", "config")
		t.Setenv("KUBECONFIG", "/nowhere"+string(os.PathListSeparator)+dst)
		got, err := MergeKubeconfig(t.Context(), "", []byte(read(t, src)), MergeOptions{})
		if want := (MergeResult{Path: dst, Context: "karve", Changed: true, Current: true}); err != nil || got != want {
			t.Fatalf("%+v, %v, want %+v", got, err, want)
		}
		if info, _ := os.Stat(dst); info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v", info.Mode())
		}
		rest, err := clientcmd.BuildConfigFromFlags("", dst)
		if err != nil || string(rest.KeyData) != read(t, s.KeyFile(Admin)) || string(rest.CAData) != read(t, s.CertFile(ServerCA)) {
			t.Errorf("%v, %v", rest, err)
		}
	})

	t.Run("beside others, behind a link", func(t *testing.T) {
		real, dst := filepath.Join(dir, "real"), filepath.Join(dir, "link")
		fatal(t, os.WriteFile(real, []byte(others), 0o640))
		fatal(t, os.Symlink("real", dst))
		before := mustLoad(t, real)
		got, err := MergeKubeconfig(t.Context(), dst, []byte(read(t, src)), MergeOptions{Name: "boat"})
		if err != nil || got.Path != real || got.Current || !got.Changed || !got.Closed || got.Context != "boat" {
			t.Fatalf("%+v, %v", got, err)
		}
		if to, _ := os.Readlink(dst); to != "real" {
			t.Errorf("the link is now %q", to)
		}
		if info, _ := os.Stat(real); info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v: others can read the administrator's key", info.Mode())
		}
		after := mustLoad(t, real)
		if after.CurrentContext != "work" || after.Contexts["boat"] == nil || after.AuthInfos["boat"] == nil {
			t.Errorf("merged %v", after)
		}
		delete(after.Contexts, "boat")
		delete(after.Clusters, "boat")
		delete(after.AuthInfos, "boat")
		a, _ := clientcmd.Write(*before)
		if c, _ := clientcmd.Write(*after); string(a) != string(c) {
			t.Errorf("what was there changed:\n%s\n%s", a, c)
		}

		// Again: nothing to write. Then with a namespace and a renewed user.
		fatal(t, os.Chmod(real, 0o644))
		if got, err := MergeKubeconfig(t.Context(), dst, []byte(read(t, src)), MergeOptions{Name: "boat"}); err != nil || got.Changed || !got.Closed {
			t.Errorf("a second merge: %+v, %v", got, err)
		}
		if info, _ := os.Stat(real); info.Mode().Perm() != 0o600 {
			t.Errorf("mode %v after a second merge", info.Mode())
		}
		after = mustLoad(t, real)
		after.Contexts["boat"].Namespace = "mine"
		after.Clusters["boat"].ProxyURL = "http://proxy:2"
		fatal(t, clientcmd.WriteToFile(*after, real))
		if _, _, err := s.ForceRenew(Admin, ServerCA); err != nil {
			t.Fatal(err)
		}
		fatal(t, WriteKubeconfig(src, k))
		got, err = MergeKubeconfig(t.Context(), dst, []byte(read(t, src)), MergeOptions{Name: "boat", SetCurrent: true})
		if err != nil || !got.Changed || !got.Current {
			t.Errorf("%+v, %v", got, err)
		}
		after = mustLoad(t, real)
		if after.Contexts["boat"].Namespace != "mine" || string(after.AuthInfos["boat"].ClientCertificateData) != read(t, s.CertFile(Admin)) {
			t.Error("the namespace is lost, or the user not renewed")
		}
		if c := after.Clusters["boat"]; c.ProxyURL != "http://proxy:2" || string(c.CertificateAuthorityData) != read(t, s.CertFile(ServerCA)) {
			t.Error("the proxy is lost, or the authority not renewed")
		}
	})

	t.Run("errors", func(t *testing.T) {
		foreign := `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"karve","cluster":{"server":"https://127.0.0.1:6443","insecure-skip-tls-verify":true}}]}`
		for name, c := range map[string]struct {
			dst  string
			opts MergeOptions
			want error
		}{
			"corrupt":           {"users: [TOPSECRET", MergeOptions{Overwrite: true}, ErrCorrupt},
			"not a kubeconfig":  {"TOPSECRET", MergeOptions{}, ErrCorrupt},
			"values":            {"replicas: 2\npassword: TOPSECRET\n", MergeOptions{Overwrite: true}, ErrCorrupt},
			"a manifest":        {"apiVersion: v1\nkind: Secret\ndata: {a: TOPSECRET}\n", MergeOptions{}, ErrCorrupt},
			"another cluster":   {foreign, MergeOptions{}, ErrConflict},
			"another's user":    {others, MergeOptions{Name: "me"}, ErrConflict},
			"another's context": {others, MergeOptions{Name: "work"}, ErrConflict},
		} {
			dst := filepath.Join(dir, "bad")
			fatal(t, os.WriteFile(dst, []byte(c.dst), 0o600))
			_, err := MergeKubeconfig(t.Context(), dst, []byte(read(t, src)), c.opts)
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), dst) || strings.Contains(err.Error(), "TOPSECRET") {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			if read(t, dst) != c.dst {
				t.Errorf("%s: the file was changed", name)
			}
			if c.want != ErrConflict {
				continue
			}
			c.opts.Overwrite = true
			if _, err := MergeKubeconfig(t.Context(), dst, []byte(read(t, src)), c.opts); err != nil {
				t.Errorf("%s, overwriting: %v", name, err)
			}
		}
	})
}
