package endtoend

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/karve-k8s/karve/datastore/backup"
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
			manifest := filepath.Join(dir, "manifests", "app.yaml")
			if err := errors.Join(os.MkdirAll(filepath.Dir(manifest), 0o700), os.WriteFile(manifest, []byte("# nothing yet\n"), 0o640)); err != nil {
				t.Fatal(err)
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
			refused("where only karve itself makes files", append(create, "--overwrite", filepath.Join(dir, "certs", "service-account.key"))...)
			got := finish(t, command(t, "karve", append(create, "--recipient", "age-secret-key-1x", filepath.Join(away, "b.backup"))...))
			if got.code == 0 || !strings.Contains(got.stderr, "secret key") || strings.Contains(got.stderr, "1x") {
				t.Errorf("a secret key as recipient: got code %d and %s, want an error without it", got.code, got.stderr)
			}

			// The card dies.
			for _, path := range []string{dir, config, keys} {
				if err := os.RemoveAll(path); err != nil {
					t.Fatal(err)
				}
			}
			at := []string{"--data-dir", filepath.Base(dir)} // as somebody types it
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
			restoring := command(t, "karve", append(append([]string{"backup", "restore", "--config", config}, at...), file)...)
			restoring.Dir = etc
			if got = finish(t, restoring); got.code != 0 || !strings.Contains(got.stderr, config+".from-backup") {
				t.Fatalf("karve backup restore: got code %d and %s, want that it keeps %s", got.code, got.stderr, config)
			}
			if err := os.Rename(config+".from-backup", config); err != nil {
				t.Fatal(err)
			}
			if text, err := os.ReadFile(manifest); err != nil || string(text) != "# nothing yet\n" || !strings.Contains(got.stdout, "placed "+filepath.Dir(manifest)) {
				t.Errorf("the manifest: got %q, %v, and %s", text, err, got.stdout)
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

// A server backs itself up, and says so. A failure shows where people look.
func TestScheduledBackups(t *testing.T) {
	t.Parallel()
	dir, away := t.TempDir(), filepath.Join(t.TempDir(), "not mounted yet")
	p := start(t, dir, append(bare, "--backup-schedule", "@every 1s", "--backup-dir", away, "--backup-retention", "1")...)
	p.poll("a failed backup", func() error {
		if s := statusOf(t, dir, 0); s.LastBackup != nil || s.BackupFailure == nil || !strings.Contains(s.BackupFailure.Problem, away) {
			return fmt.Errorf("got backup %+v and failure %+v", s.LastBackup, s.BackupFailure)
		}
		if table := karve(t, "status", "--data-dir", dir); !strings.Contains(table, "backup failed") {
			return fmt.Errorf("karve status: got\n%s", table)
		}
		if got := karve(t, "kubectl", "--data-dir", dir, "get", "events", "--field-selector", "reason=BackupFailed", "-o", "jsonpath={.items[*].message}"); !strings.Contains(got, away) {
			return fmt.Errorf("Events: got %q", got)
		}
		return nil
	})
	metrics := func(want ...string) error {
		text := karve(t, "kubectl", "--data-dir", dir, "get", "--raw", "/metrics")
		for _, line := range want {
			if !strings.Contains(text, "\n"+line) {
				return fmt.Errorf("/metrics: want %s", line)
			}
		}
		return nil
	}
	if err := metrics("karve_backup_last_success_timestamp_seconds 0\n", "karve_backup_failed 1\n"); err != nil {
		t.Error(err)
	}
	if err := os.Mkdir(away, 0o700); err != nil {
		t.Fatal(err)
	}
	var first *backup.Record
	p.poll("a backup", func() error {
		s := statusOf(t, dir, 0)
		if s.LastBackup == nil || s.BackupFailure != nil || filepath.Dir(s.LastBackup.File) != away {
			return fmt.Errorf("got backup %+v and failure %+v", s.LastBackup, s.BackupFailure)
		}
		first = s.LastBackup
		return metrics("karve_backup_last_success_timestamp_seconds 1", "karve_backup_failed 0\n")
	})
	karve(t, "kubectl", "--data-dir", dir, "create", "namespace", "more")
	p.poll("another backup in its place", func() error {
		if last := statusOf(t, dir, 0).LastBackup; last.Revision <= first.Revision {
			return fmt.Errorf("the last one is of revision %d", last.Revision)
		}
		if files, err := os.ReadDir(away); err != nil || len(files) != 1 {
			return fmt.Errorf("got %v, %v, want one file", files, err)
		}
		return nil
	})
}
