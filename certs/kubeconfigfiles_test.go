package certs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/internal/filemode"
)

func TestKubeconfigFiles(t *testing.T) {
	b := newTestbed(t)
	s, _ := b.ensure(t)
	dir := t.TempDir()
	files := KubeconfigFiles{Path: filepath.Join(dir, "admin.kubeconfig"), Copy: filepath.Join(dir, "elsewhere", "copy"), CopyMode: 0o640}
	carries := func(when string, paths ...string) {
		t.Helper()
		for _, path := range paths {
			user := mustLoad(t, path).AuthInfos[DefaultContext]
			if got, want := string(user.ClientCertificateData), read(t, s.CertFile(Admin)); got != want {
				t.Errorf("%s: %s does not carry the present certificate", when, path)
			}
		}
		if info, err := os.Stat(files.Copy); err == nil && !filemode.Is(info, files.CopyMode) {
			t.Errorf("%s: mode %v of the copy, want %v", when, info.Mode(), files.CopyMode)
		}
	}
	renew := func(when string) {
		t.Helper()
		if _, _, err := s.ForceRenew(Admin); err != nil {
			t.Fatal(err)
		}
		if err := RenewKubeconfigs(s, files.Path); err != nil {
			t.Errorf("%s: %v", when, err)
		}
	}
	gone := func(when, path string) {
		t.Helper()
		if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %s is there (%v)", when, path, err)
		}
	}

	renew("before the first start")
	gone("before the first start", files.Path)
	if err := files.Write(s.Kubeconfig(Admin, "https://192.168.1.5:6443")); err != nil {
		t.Fatal(err)
	}
	carries("written", files.Path, files.Copy)
	if info, err := os.Stat(notePath(files.Path)); err != nil || !filemode.Is(info, 0o600) {
		t.Errorf("the note: %v, %v, want mode 0600", info, err)
	}
	renew("both are there")
	carries("both are there", files.Path, files.Copy)
	if got := mustLoad(t, files.Copy).Clusters[DefaultContext].Server; got != "https://192.168.1.5:6443" {
		t.Errorf("the server in the copy is %s now", got)
	}

	// A start that has not come to its end yet: only the copy is there.
	if err := os.Remove(files.Path); err != nil {
		t.Fatal(err)
	}
	renew("the server starts")
	carries("the server starts", files.Copy)
	gone("the server starts", files.Path)

	if err := os.Remove(files.Copy); err != nil {
		t.Fatal(err)
	}
	renew("the user has removed the copy")
	gone("the user has removed the copy", files.Copy)

	// A directory in the place of the copy, and a damaged note.
	if err := os.Mkdir(files.Copy, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := files.Write(s.Kubeconfig(Admin, "https://x")); err == nil || !strings.Contains(err.Error(), "--write-kubeconfig: ") {
		t.Errorf("written over a directory: got %v, want an error that names the option", err)
	}
	for _, note := range []string{"", "{", `{"path": "/nowhere"}`, `{"path": "/nowhere", "mode": "rw"}`} {
		if err := os.WriteFile(notePath(files.Path), []byte(note), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := RenewKubeconfigs(s, files.Path); err == nil || !strings.Contains(err.Error(), notePath(files.Path)) {
			t.Errorf("the note %q: got %v, want an error that names the file", note, err)
		}
	}

	// The next start is without a copy.
	files.Copy = ""
	if err := files.Write(s.Kubeconfig(Admin, "https://x")); err != nil {
		t.Fatal(err)
	}
	gone("no copy any more", notePath(files.Path))
	renew("no copy any more")
}

// The server's own file stays at the server itself, so that tools on its machine need no load balancer. It
// lists the URL for users as well; the copy has that alone. Both stay so in a renewal.
func TestKubeconfigFilesWithAnAdvertisedURL(t *testing.T) {
	b := newTestbed(t)
	s, _ := b.ensure(t)
	dir := t.TempDir()
	files := KubeconfigFiles{Path: filepath.Join(dir, "admin.kubeconfig"), Copy: filepath.Join(dir, "copy")}
	const own, users = "https://127.0.0.1:6443", "https://karve.example:443"
	k := s.Kubeconfig(Admin, own)
	k.Advertised = users
	if err := files.Write(k); err != nil {
		t.Fatal(err)
	}
	check := func(when string) {
		t.Helper()
		for path, want := range map[string][2]string{files.Path: {own, users}, files.Copy: {users, ""}} {
			config := mustLoad(t, path)
			server, advertised := KubeconfigServers(config)
			if got := [2]string{server, advertised}; got != want {
				t.Errorf("%s: servers in %s: got %q, want %q", when, path, got, want)
			}
			if got := config.Clusters[config.Contexts[config.CurrentContext].Cluster].Server; got != want[0] {
				t.Errorf("%s: server of the current context of %s: got %s, want %s", when, path, got, want[0])
			}
			for name, context := range config.Contexts {
				if user := config.AuthInfos[context.AuthInfo]; user == nil || string(user.ClientCertificateData) != read(t, s.CertFile(Admin)) {
					t.Errorf("%s: context %s of %s does not have the present certificate", when, name, path)
				}
			}
		}
	}
	check("written")
	if _, _, err := s.ForceRenew(Admin); err != nil {
		t.Fatal(err)
	}
	if err := RenewKubeconfigs(s, files.Path); err != nil {
		t.Fatal(err)
	}
	check("renewed")
}
