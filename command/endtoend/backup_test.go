package endtoend

import (
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/internal/eventually"
)

// A backup rebuilds a lost machine: objects, encrypted Secrets, kubeconfigs, tokens and the configuration.
func TestBackupRebuildsAMachine(t *testing.T) {
	for name, sealed := range map[string]bool{"plain": false, "sealed": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			etc, away := t.TempDir(), t.TempDir()
			dir, config := filepath.Join(etc, "data"), filepath.Join(etc, "config.yaml")
			keys, file, passphrase := filepath.Join(etc, "keys.yaml"), filepath.Join(away, "a.backup"), filepath.Join(away, "passphrase")
			secret := make([]byte, 32)
			_, _ = rand.Read(secret) // it never fails
			providers := fmt.Sprintf(`{"kind":"EncryptionConfiguration","apiVersion":"apiserver.config.k8s.io/v1","resources":[{"resources":["secrets"],"providers":[{"aescbc":{"keys":[{"name":"a","secret":%q}]}}]}]}`, base64.StdEncoding.EncodeToString(secret))
			for path, text := range map[string]string{
				keys: providers, passphrase: "correct horse battery\n",
				config: "data-dir: " + dir + "\ninsecure-port: -1\nsecure-port: 0\ndisable-scheduler: true\nencryption-provider-config: " + keys + "\n",
			} {
				if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			p := start(t, dir, "--config", config)
			kubectl := func(args ...string) string {
				return karve(t, append([]string{"kubectl", "--data-dir", dir}, args...)...)
			}
			kubectl("create", "secret", "generic", "kept", "--from-literal", "a=b")
			token := strings.TrimSpace(kubectl("create", "token", "default"))
			admin, err := clientcmd.LoadFromFile(filepath.Join(dir, "admin.kubeconfig"))
			if err != nil {
				t.Fatal(err)
			}
			create, open := []string{"backup", "create", "--config", config}, []string{"--config", config}
			if sealed {
				create, open = append(create, "--passphrase-file", passphrase), append(open, "--passphrase-file", passphrase)
			}
			karve(t, append(create, file)...)
			if text, err := os.ReadFile(file); err != nil || strings.Contains(string(text), "PRIVATE KEY") == sealed {
				t.Errorf("%v; it has readable keys: %v", err, !sealed)
			}
			karve(t, append(append([]string{"backup", "verify"}, open...), file)...)
			var listed []struct {
				Sealed  bool
				Problem string
			}
			if err := json.Unmarshal([]byte(karve(t, "backup", "list", "--config", config, "-o", "json", away)), &listed); err != nil || len(listed) != 1 || listed[0].Sealed != sealed || listed[0].Problem != "" {
				t.Errorf("karve backup list: got %+v, %v", listed, err)
			}
			refused := func(want string, args ...string) {
				t.Helper()
				if got := finish(t, command(t, "karve", args...)); got.code == 0 || !strings.Contains(got.stderr, want) {
					t.Errorf("karve %s: got code %d and %s, want %s", strings.Join(args, " "), got.code, got.stderr, want)
				}
			}
			restore := append(append([]string{"backup", "restore"}, open...), file)
			refused("stop the server", restore...)
			p.stop()
			refused("there is a cluster already", restore...)
			refused("exists already", append(create, file)...)

			// The card dies.
			for _, path := range []string{dir, config, keys} {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
			at := []string{"--data-dir", dir}
			if sealed {
				at = append(at, "--passphrase-file", passphrase)
			}
			if sealed {
				refused("--passphrase-file", "backup", "verify", file)
			}
			// A file of the user's stays.
			if err := os.WriteFile(config, nil, 0o600); err != nil {
				t.Fatal(err)
			}
			got := finish(t, command(t, "karve", append(append([]string{"backup", "restore", "--config", config}, at...), file)...))
			if got.code != 0 || !strings.Contains(got.stderr, config+".from-backup") {
				t.Fatalf("karve backup restore: got code %d and %s, want that it keeps %s", got.code, got.stderr, config)
			}
			if err := os.Rename(config+".from-backup", config); err != nil {
				t.Fatal(err)
			}
			host, err := url.Parse(admin.Clusters["karve"].Server)
			if err != nil {
				t.Fatal(err)
			}
			start(t, dir, "--config", config, "--secure-port", host.Port())
			old := filepath.Join(away, "admin.kubeconfig")
			if err := clientcmd.WriteToFile(*admin, old); err != nil {
				t.Fatal(err)
			}
			if got := karve(t, "kubectl", "--kubeconfig", old, "get", "secret", "kept", "-o", "jsonpath={.data.a}"); got != "Yg==" {
				t.Errorf("the Secret is %q, want Yg==", got)
			}
			who := karve(t, "kubectl", "--kubeconfig", os.DevNull, "--server", admin.Clusters["karve"].Server, "--certificate-authority", filepath.Join(dir, "certs", "server-ca.crt"),
				"--token", token, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")
			if who != "system:serviceaccount:default:default" {
				t.Errorf("the token is of %q", who)
			}
		})
	}
}

// The server makes backups by itself, keeps as many as it should, and says when one fails.
func TestScheduledBackups(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, dir, append(bare, "--backup-schedule", "@every 1s", "--backup-retention", "2")...)
	made := func() []string {
		files, _ := filepath.Glob(filepath.Join(dir, "backups", "karve-*.backup"))
		return files
	}
	first := ""
	eventually.True(t, "a first backup is made", func() bool {
		if files := made(); len(files) > 0 {
			first = files[0]
		}
		return first != ""
	})
	foreign := filepath.Join(dir, "backups", "mine.backup")
	if err := os.WriteFile(foreign, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	n := 0
	eventually.True(t, "the first backup makes room", func() bool {
		n++
		karve(t, "kubectl", "--data-dir", dir, "create", "namespace", fmt.Sprintf("n%d", n))
		_, err := os.Stat(first)
		return os.IsNotExist(err)
	})
	eventually.True(t, "two are left", func() bool { return len(made()) == 2 })
	for _, file := range made() {
		karve(t, "backup", "verify", "--data-dir", dir, file)
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("a file of the user's: %v", err)
	}
	if got := karve(t, "status", "--data-dir", dir); !strings.Contains(got, filepath.Join(dir, "backups")) {
		t.Errorf("karve status: got %s, want the directory of the backups", got)
	}
	if got := karve(t, "kubectl", "--data-dir", dir, "get", "--raw", "/metrics"); !strings.Contains(got, "\nkarve_backup_last_success_timestamp_seconds 1.") {
		t.Error("/metrics does not say when the last backup was made")
	}
	p.stop()

	blocked := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(blocked, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	start(t, dir, append(bare, "--backup-schedule", "@every 1s", "--backup-dir", blocked)...)
	eventually.True(t, "an Event names the failure", func() bool {
		events := karve(t, "kubectl", "--data-dir", dir, "get", "events", "-n", "kube-system", "-o", "jsonpath={.items[*].reason} {.items[*].message}")
		return strings.Contains(events, "BackupFailed") && strings.Contains(events, blocked)
	})
	if got := karve(t, "status", "--data-dir", dir); !strings.Contains(got, "failed") || !strings.Contains(got, blocked) {
		t.Errorf("karve status: got %s, want that the last backup failed", got)
	}
	for args, want := range map[string]string{
		"--backup-schedule daily":                                          `--backup-schedule "daily"`,
		"--backup-schedule @daily --backup-retention=-1":                   "--backup-retention -1",
		"--backup-schedule @daily --datastore-endpoint http://127.0.0.1:1": "own tools",
	} {
		got := finish(t, command(t, "karve", append([]string{"server", "--data-dir", t.TempDir()}, strings.Fields(args)...)...))
		if got.code == 0 || !strings.Contains(got.stderr, want) {
			t.Errorf("karve server %s: got code %d and %s, want %s", args, got.code, got.stderr, want)
		}
	}
}
