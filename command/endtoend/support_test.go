package endtoend

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// unpack returns the files of an archive of karve support.
func unpack(t *testing.T, path string) map[string]string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%s: got mode %v (%v), want 0600", path, info.Mode(), err)
	}
	packed, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for archive := tar.NewReader(packed); ; {
		h, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(h.Name, "karve-support/")] = string(text)
	}
}

// No secret gets into the file, wherever it is: each of these is planted in a place of its own.
func TestSupportHasNoSecrets(t *testing.T) {
	parallel(t)
	dir, place := t.TempDir(), t.TempDir()
	plant := func(name, text string) string {
		path := filepath.Join(place, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	tokens := plant("tokens.csv", "planted-token-file,jane,1\n")
	config := plant("config.yaml", "token-auth-file: "+tokens+"\nevent-ttl: 2h\nkube-apiserver-arg: [max-requests-inflight=300]\n# the old password: planted comment\n")
	p := launchWith(t, dir, []string{"KARVE_MIGRATE_TO=postgres://u:planted-environ@db/k"}, "--config", config).waitReady()
	core := client(t, p.config()).CoreV1()
	_, err := core.Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"a": "planted-object"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	key, err := os.ReadFile(filepath.Join(dir, "certs", "server-ca.key"))
	if err != nil {
		t.Fatal(err)
	}
	log := plant("server.log", "level=error msg=\"connect to mysql://u:planted@log@tcp(db)/k {\\\"password\\\":\\\"planted json\\\"}\"\n"+string(key)+"the last line\n")

	ask := func(name string, env ...string) map[string]string {
		t.Helper()
		file := filepath.Join(place, name)
		cmd := command(t, "karve", "support", "--data-dir", dir, "--config", config, "--log-file", log, file)
		cmd.Env = append(cmd.Env, env...)
		succeed(t, cmd)
		all := unpack(t, file)
		for name, text := range all {
			for _, secret := range append(strings.Split(strings.TrimSpace(string(key)), "\n")[1:3], "planted") {
				if i := strings.Index(text, secret); i >= 0 {
					t.Errorf("%s has %q: …%s…", name, secret, text[max(0, i-60):min(len(text), i+60)])
				}
			}
		}
		for name, want := range map[string]string{
			"options.txt": "event-ttl: 2h", "log.txt": "the last line", "version.txt": "kubernetes", "check.txt": "datastore", "summary.txt": "options.txt", "status.txt": dir,
		} {
			if !strings.Contains(all[name], want) {
				t.Errorf("%s: got %q, want %q in it", name, all[name], want)
			}
		}
		return all
	}
	running := ask("running.tar.gz", "KARVE_MIGRATE_FROM=postgres://u:planted-endpoint@127.0.0.1:1/k", "GOFOREIGN=planted")
	for name, want := range map[string]string{
		"status.txt": "ready", "metrics.txt": "apiserver_request_total", "goroutines.txt": "goroutine 1 [", "page.html": "The start",
		"ready.txt": "[+]etcd ok", "options.txt": "token-auth-file: (set)\nevent-ttl: 2h\nkube-apiserver-arg: max-requests-inflight: 300\n",
	} {
		if !strings.Contains(running[name], want) {
			t.Errorf("%s: got %d bytes, want %q in it", name, len(running[name]), want)
		}
	}
	p.stop()
	config = plant("external.yaml", "event-ttl: 2h\ndatastore-endpoint: postgres://u:planted-endpoint@127.0.0.1:1/k\n")
	if down := ask("down.tar.gz", "KARVE_TOKEN_AUTH_FILE="+tokens); !strings.Contains(down["summary.txt"], "no server runs in "+dir) || strings.Contains(down["summary.txt"], "refused") || down["metrics.txt"] != "" || !strings.Contains(down["options.txt"], "datastore-endpoint: (set)\n") {
		t.Errorf("without a server: the summary is %q", down["summary.txt"])
	}
	wantProblems(t, finish(t, command(t, "karve", "secrets", "status", "--data-dir", dir)), "no server runs in "+dir+": start one with karve server…--datastore-endpoint")
	if got := finish(t, command(t, "karve", "support", "--data-dir", dir, filepath.Join(place, "down.tar.gz"))); got.code != 1 || !strings.Contains(got.stderr, "exists") {
		t.Errorf("a file that exists: got %d and %q", got.code, got.stderr)
	}
}
