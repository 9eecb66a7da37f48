package certs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

func TestKubeconfigFiles(t *testing.T) {
	s, _ := newTestbed(t).ensure(t)
	dir := t.TempDir()
	files := KubeconfigFiles{Path: filepath.Join(dir, "data", "admin.kubeconfig"), Copy: filepath.Join(dir, "elsewhere", "copy"), CopyMode: 0o640}
	k := s.Kubeconfig(Admin, "https://192.168.1.5:6443")
	renew := func(when string, there ...string) {
		t.Helper()
		if _, _, err := s.ForceRenew(Admin); err != nil {
			t.Fatal(err)
		}
		if _, err := RenewKubeconfigs(s, files.Path); err != nil {
			t.Errorf("%s: %v", when, err)
		}
		for _, path := range []string{files.Path, files.Copy} {
			if _, err := os.Stat(path); (err == nil) != slices.Contains(there, path) {
				t.Errorf("%s: %s: %v", when, path, err)
			} else if err == nil && string(mustLoad(t, path).AuthInfos[DefaultContext].ClientCertificateData) != read(t, s.CertFile(Admin)) {
				t.Errorf("%s: %s does not carry the present certificate", when, path)
			}
		}
	}
	renew("before the first start")
	fatal(t, files.Write(k))
	renew("both are there", files.Path, files.Copy)
	for path, want := range map[string]os.FileMode{files.Copy: files.CopyMode, notePath(files.Path): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v, want mode %v", path, info, err, want)
		}
	}
	for _, gone := range []struct {
		when, path string
		left       []string
	}{{"the server starts", files.Path, []string{files.Copy}}, {"the user has removed the copy", files.Copy, nil}} {
		fatal(t, os.Remove(gone.path))
		renew(gone.when, gone.left...)
	}
	for _, note := range []string{"", "{", `{"path": "/nowhere"}`, `{"path": "/nowhere", "mode": "rw"}`} {
		fatal(t, os.WriteFile(notePath(files.Path), []byte(note), 0o600))
		if _, err := RenewKubeconfigs(s, files.Path); err == nil || !strings.Contains(err.Error(), notePath(files.Path)) {
			t.Errorf("the note %q: got %v, want an error that names the file", note, err)
		}
	}
	files.Copy = "" // of the next start
	fatal(t, files.Write(k))
	renew("no copy any more", files.Path)
	if _, err := os.Stat(notePath(files.Path)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the note about the copy: %v", err)
	}
}

// What users have added outlasts renewals and starts. The server's own file stays at the server itself, so that tools on its machine
// need no load balancer. It lists the URL for users as well; the copy has that alone.
func TestAddedEntriesStay(t *testing.T) {
	s, _ := newTestbed(t).ensure(t)
	dir := t.TempDir()
	files := KubeconfigFiles{Path: filepath.Join(dir, "data", "admin.kubeconfig"), Copy: filepath.Join(dir, "copy"), CopyMode: 0o644}
	k := s.Kubeconfig(Admin, "https://127.0.0.1:6443")
	k.Advertised = "https://karve.example"
	fatal(t, files.Write(k))
	for _, path := range []string{files.Path, files.Copy} {
		config := mustLoad(t, path)
		config.Contexts[DefaultContext].Namespace = "mine"
		config.Clusters["prod"], config.AuthInfos["prod"] = &clientcmdapi.Cluster{Server: "https://prod"}, &clientcmdapi.AuthInfo{Token: "precious"}
		config.Contexts["prod"], config.CurrentContext = &clientcmdapi.Context{Cluster: "prod", AuthInfo: "prod"}, "prod"
		fatal(t, errors.Join(clientcmd.WriteToFile(*config, path), os.Chmod(path, 0o600)))
	}
	check := func(when, current string) {
		t.Helper()
		for path, want := range map[string][2]string{files.Path: {k.Server, k.Advertised}, files.Copy: {k.Advertised}} {
			config := mustLoad(t, path)
			server, users := KubeconfigServers(config)
			if got := [2]string{server, users}; got != want || config.Contexts[DefaultContext].Namespace != "mine" || string(config.AuthInfos[DefaultContext].ClientCertificateData) != read(t, s.CertFile(Admin)) {
				t.Errorf("%s: %s has the servers %q and %+v, or not the present certificate", when, path, got, config.Contexts[DefaultContext])
			}
			if config.AuthInfos["prod"] == nil || config.AuthInfos["prod"].Token != "precious" || config.Contexts["prod"] == nil || config.Clusters["prod"] == nil {
				t.Errorf("%s: %s has lost what was added", when, path)
			}
			if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
				t.Errorf("%s: mode %v of %s: others can read what was added (%v)", when, info.Mode(), path, err)
			}
		}
		if got := mustLoad(t, files.Path).CurrentContext; got != current {
			t.Errorf("%s: the current context of the server's own is %s, want %s", when, got, current)
		}
		if got := mustLoad(t, files.Copy).CurrentContext; got != "prod" {
			t.Errorf("%s: the current context of the copy is %s", when, got)
		}
	}
	if _, _, err := s.ForceRenew(Admin); err != nil {
		t.Fatal(err)
	}
	if notes, err := RenewKubeconfigs(s, files.Path); err != nil || len(notes) > 0 {
		t.Errorf("got %v, %v", notes, err)
	}
	check("renewed", "prod")
	for range 2 { // the first one is killed
		if err := os.Rename(files.Path, files.Path+AsideSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	fatal(t, files.Write(k))
	check("started", DefaultContext)
	if left, _ := filepath.Glob(filepath.Join(dir, "*", "*"+AsideSuffix)); len(left) > 0 {
		t.Errorf("%v is left", left)
	}
	if k.Advertised = ""; files.Write(k) != nil || mustLoad(t, files.Path).Contexts[AdvertisedContext] != nil {
		t.Error("a URL that is not advertised any more stays")
	}
}

// An entry with another authority is of another cluster.
func TestCopyOfAnotherCluster(t *testing.T) {
	s, _ := newTestbed(t).ensure(t)
	other, _ := newTestbed(t).ensure(t)
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	write := func(s *Store, data, server, copied string) error {
		return KubeconfigFiles{Path: filepath.Join(at(data), "admin.kubeconfig"), Copy: copied}.Write(s.Kubeconfig(Admin, server))
	}
	refused := func(when string, err error, copied, before string) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "--write-kubeconfig: ") || !strings.Contains(err.Error(), copied) || before != "" && read(t, copied) != before {
			t.Errorf("%s: got %v, want an error that names the option and %s, and the file as it was", when, err, copied)
		}
	}
	const here, elsewhere = "https://127.0.0.1:6443", "https://192.0.2.1:6443"
	copied := at("copy")
	// The next cluster takes the copy of the one before, which is left alone from then on.
	fatal(t, errors.Join(write(s, "old", "https://127.0.0.1:7443", copied), write(other, "new", here, copied)))
	taken := read(t, copied)
	if notes, err := RenewKubeconfigs(s, filepath.Join(at("old"), "admin.kubeconfig")); err != nil || len(notes) != 1 || !strings.Contains(notes[0].Text, copied) || read(t, copied) != taken {
		t.Errorf("a renewal of the old cluster: got %v, %v, want a note about %s, which stays", notes, err, copied)
	}
	refused("a renewal while the old one runs", write(s, "old", "https://127.0.0.1:7443", copied), copied, taken)
	// Not so if the user has it from another machine, or has others there.
	fatal(t, write(s, "fetched-from", elsewhere, at("fetched")))
	before := read(t, at("fetched"))
	refused("fetched", write(other, "next", here, at("fetched")), at("fetched"), before)
	if err := write(other, "next", elsewhere, at("fetched")); err != nil {
		t.Errorf("at the URL of a Karve that is gone: %v", err)
	}
	config := mustLoad(t, copied)
	config.Clusters["prod"] = &clientcmdapi.Cluster{Server: "https://prod"}
	fatal(t, clientcmd.WriteToFile(*config, copied))
	before = read(t, copied)
	refused("others", write(s, "next", "https://127.0.0.1:7443", copied), copied, before)

	// No other file gets replaced.
	fatal(t, os.WriteFile(at("values"), []byte("replicas: 2\n"), 0o600))
	refused("no kubeconfig", write(s, "old", here, at("values")), at("values"), "replicas: 2\n")
	refused("in the data directory", write(s, "old", here, at("old/mvcc.db")), at("old/mvcc.db"), "")
}
