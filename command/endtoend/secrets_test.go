package endtoend

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/karve-k8s/karve/server/apiserver"
)

// secretsStored returns the number of Secrets for each key, "" for those without encryption, and what comes next. Keys are
// without the random end of their names.
func secretsStored(t *testing.T, dir string) (counts map[string]int, next string) {
	t.Helper()
	var report struct {
		Stored []struct {
			Key     string
			Secrets int
		}
		Next string
	}
	if err := json.Unmarshal([]byte(karve(t, "secrets", "status", "--data-dir", dir, "-o", "json")), &report); err != nil {
		t.Fatal(err)
	}
	counts = map[string]int{}
	for _, s := range report.Stored {
		if parts := strings.Split(s.Key, "-"); len(parts) == 3 {
			s.Key = parts[0] + "-" + parts[1]
		}
		counts[s.Key] += s.Secrets
	}
	return counts, report.Next
}

// Secrets are encrypted, and their key is replaced. At every step each Secret can be read.
func TestSecretsCommands(t *testing.T) {
	long(t)
	parallel(t)
	dir := t.TempDir()
	p := start(t, dir, append(bare, "--no-secrets-encryption")...)
	made := 0
	create := func() {
		t.Helper()
		made++
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("s", made)}, StringData: map[string]string{"key": "value"}}
		if _, err := client(t, p.config()).CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	step := func(verb string, counts map[string]int, next string) {
		t.Helper()
		if verb != "" {
			karve(t, "secrets", verb, "--data-dir", dir)
		}
		if got, then := secretsStored(t, dir); !maps.Equal(got, counts) || then != next {
			t.Errorf("after %q: got %v and %q, want %v and %q", verb, got, then, counts, next)
		}
		for i := range made {
			got, err := client(t, p.config()).CoreV1().Secrets("default").Get(t.Context(), fmt.Sprint("s", i+1), metav1.GetOptions{})
			if err != nil || string(got.Data["key"]) != "value" {
				t.Errorf("after %q: the Secret s%d: %v, %v", verb, i+1, got.Data, err)
			}
		}
	}
	refuse := func(verb string, want ...string) {
		t.Helper()
		args := append(strings.Fields("secrets "+verb), "--data-dir", dir)
		got := finish(t, command(t, "karve", args...))
		if got.code != 1 {
			t.Errorf("%s: exit code %d, want 1", verb, got.code)
		}
		wantIn(t, got.stderr, want...)
	}
	create()
	step("", map[string]int{"": 1}, "karve secrets enable")
	refuse("rotate", "karve secrets enable")
	refuse("reencrypt", "without encryption")
	step("enable", map[string]int{"key-1": 0, "": 1}, "karve secrets reencrypt")
	refuse("enable", "karve secrets rotate")
	refuse("reencrypt", "1 of 1 Secrets", "start each server again")
	p.stop()
	p = start(t, dir, bare...)
	create()
	step("", map[string]int{"key-1": 1, "": 1}, "karve secrets reencrypt")
	step("reencrypt", map[string]int{"key-1": 2, "": 0}, "")
	older, olderData := filepath.Join(t.TempDir(), "older"), filepath.Join(t.TempDir(), "older.db")
	karve(t, "snapshot", "--data-dir", dir, older)
	karve(t, "datastore", "backup", "--data-dir", dir, olderData)
	step("rotate", map[string]int{"key-2": 0, "key-1": 2, "": 0}, "karve secrets reencrypt") // waits until the server has the key
	create()
	step("", map[string]int{"key-2": 1, "key-1": 2, "": 0}, "karve secrets reencrypt")
	wantIn(t, karve(t, "secrets", "reencrypt", "--drop-old", "--data-dir", dir), "all 3", "key-2")
	step("", map[string]int{"key-2": 3, "": 0}, "")
	file := filepath.Join(dir, "certs", "encryption-provider-config.yaml")
	newest := func() string {
		t.Helper()
		config, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile("key-[0-9]+-[0-9a-f]{8}").FindString(string(config))
	}
	for _, file := range []string{file, file + ".before-" + newest()} {
		if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", file, info, err)
		}
	}
	// Older data, whose key was dropped, do not come back: nobody could read them.
	olderRefused := func(args ...string) {
		t.Helper()
		got := finish(t, command(t, "karve", append(args, "--data-dir", dir)...))
		if got.code != 1 {
			t.Errorf("%q: exit code %d, want 1", args, got.code)
		}
		wantIn(t, got.stderr, "default/s1 could not be read", file+".before-"+newest()+" has it")
	}
	olderRefused("reset", "--yes", older)
	step("", map[string]int{"key-2": 3, "": 0}, "")
	p.stop()
	olderRefused("reset", "--yes", older)
	olderRefused("datastore", "restore", olderData)
	p = start(t, dir, bare...)
	step("", map[string]int{"key-2": 3, "": 0}, "")

	// Old keys stay while it is not known that nothing needs them, and so does a copy of older ones. A link stays one.
	linked := filepath.Join(t.TempDir(), "linked.yaml")
	if err := errors.Join(os.Rename(file, linked), os.Symlink(linked, file)); err != nil {
		t.Fatal(err)
	}
	step("rotate", map[string]int{"key-3": 0, "key-2": 3, "": 0}, "karve secrets reencrypt")
	if err := os.WriteFile(file+".before-"+newest(), []byte("older keys"), 0o600); err != nil {
		t.Fatal(err)
	}
	refuse("reencrypt --drop-old", "before-key-3", "move it elsewhere")
	if to, err := os.Readlink(file); to != linked {
		t.Errorf("got a link to %q (%v), want %s", to, err, linked)
	}
	config, err := os.ReadFile(file)
	if err == nil {
		err = os.WriteFile(file, []byte(strings.Replace(string(config), "- secrets\n", "- secrets\n  - configmaps\n", 1)), 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	refuse("reencrypt --drop-old", "configmaps may be stored with the old keys")
	step("", map[string]int{"key-3": 3, "key-2": 0, "": 0}, "")
	p.stop()

	dir = t.TempDir()
	own := write(t, "own.yaml", encryptionConfig)
	start(t, dir, append(bare, "--encryption-provider-config="+own)...)
	if err := os.WriteFile(filepath.Join(dir, "certs", filepath.Base(file)), config, 0o600); err != nil { // as if Karve had made one before
		t.Fatal(err)
	}
	refuse("rotate", "--encryption-provider-config", "a file of yours, "+own)
	if got := karve(t, "secrets", "status", "--data-dir", dir, "-o", "json"); !strings.Contains(got, own) {
		t.Errorf("got %s, want the status of %s", got, own)
	}
}

// A new cluster encrypts Secrets. A server that has lost the key, or has that of another cluster, says so, and starts again when
// it is back.
func TestNewClusterEncryptsSecrets(t *testing.T) {
	dir := t.TempDir()
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}, StringData: map[string]string{"key": "value"}}
	p := start(t, dir, bare...)
	if _, err := client(t, p.config()).CoreV1().Secrets("default").Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if got, next := secretsStored(t, dir); !maps.Equal(got, map[string]int{"key-1": 1, "": 0}) || next != "" {
		t.Errorf("got %v and %q, want one Secret with key-1", got, next)
	}
	p.stop()
	file := filepath.Join(dir, "certs", "encryption-provider-config.yaml")
	wantIn(t, p.stderr.String(), "Secrets encrypted", file)
	if err := os.Rename(file, file+".lost"); err != nil {
		t.Fatal(err)
	}
	other, err := apiserver.NewEncryption()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		got := finish(t, command(t, "karve", append([]string{"server", "--data-dir", dir, "--secure-port=0", "--insecure-port=-1"}, bare...)...))
		if got.code == 0 {
			t.Error("the server has started without the key")
		}
		wantIn(t, got.stderr, "the Secret default/s", file+".lost has it", "--encryption-provider-config", "etcdctl")
		if err := os.WriteFile(file, other, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(file+".lost", file); err != nil {
		t.Fatal(err)
	}
	p = start(t, dir, bare...)
	if got, err := client(t, p.config()).CoreV1().Secrets("default").Get(t.Context(), "s", metav1.GetOptions{}); err != nil || string(got.Data["key"]) != "value" {
		t.Errorf("got %v, %v", got, err)
	}
}
