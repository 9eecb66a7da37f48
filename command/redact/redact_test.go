package redact

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	for text, secret := range map[string]string{
		"dial postgres://karve:hunter2@db/k: refused":                             "hunter2",
		`endpoint=mysql://u:p@ss:w/rd@tcp(db:3306)/k`:                             "ss:w/rd",
		"postgres://db/k?user=a&password=hunter2&sslmode=off":                     "hunter2",
		`{"password": "two words", "a": 1}`:                                       "words",
		"KARVE_DATASTORE_ENDPOINT=u:hunter2":                                      "hunter2",
		"--datastore-endpoint\nu:hunter2":                                         "hunter2",
		"Authorization: Bearer abcdefgh12345":                                     "abcdefgh",
		"token abcdef.0123456789abcdef is valid":                                  "0123456789abcdef",
		"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJl.c2ln":                              "eyJpc3Mi",
		"a\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----": "MHcCAQ",
		"client-key-data: LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1Hd0NBUUE=":       "CRUdJTiBQ",
		"AGE-SECRET-KEY-1QQPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L":                       "PZRY9X8",
		"my_api_key='hunter2'":                                                    "hunter2",
	} {
		got := string(new(Secrets).Redact([]byte(text)))
		if strings.Contains(got, secret) || !strings.Contains(got, Mark) {
			t.Errorf("%s: got %s", text, got)
		}
	}
	for _, text := range []string{
		"token-auth-file: /etc/karve/tokens.csv", "cluster-token-file=/etc/karve/token", "token.go:123 +0x5f", `resource="secrets",verb="list"`,
		"https://127.0.0.1:6443", "state: ready", `"secrets": 5`, `name="token_cleaner"} 0`, "the certificate of user@example.com",
	} {
		if got := string(new(Secrets).Redact([]byte(text))); got != text {
			t.Errorf("no secret: got %s, want %s", got, text)
		}
	}
}

// A value of the configuration ends with its line, and those of comments count.
func TestConfig(t *testing.T) {
	got := string(Config([]byte("KARVE_DATASTORE_ENDPOINT=mysql://u:two words@h\n--datastore-endpoint\nmysql://u:two words@h\n--token-auth-file\n/etc/t\nsecure-port: 7443\n# old password: two words\ndatastore-endpoint: mysql://u:two words@tcp(db)/k\ncluster-token-file: /etc/token\n")))
	if want := "KARVE_DATASTORE_ENDPOINT=" + Mark + "\n--datastore-endpoint\n" + Mark + "\n--token-auth-file\n/etc/t\nsecure-port: 7443\n# old password:" + Mark + "\ndatastore-endpoint:" + Mark + "\ncluster-token-file: /etc/token\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// What the configuration and its files have is found wherever it stands.
func TestKnownSecrets(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	var s Secrets
	s.Learn([]byte("datastore-endpoint: postgres://u:inURLsecret@db/k\n" +
		"token-auth-file: " + write("tokens.csv", "inCSVsecret,jane,1\n") + "\n" +
		"KARVE_CLUSTER_TOKEN_FILE=" + write("token", "inFILEsecret\n") + "\n" +
		"--encryption-provider-config\n" + write("e.yaml", "kind: EncryptionConfiguration\nkeys: [{name: k, secret: inYAMLsecret}]\n") + "\n" +
		"manifests-dir: " + write("other", "ordinary\n")))
	got := string(s.Redact([]byte("inURLsecret inCSVsecret inFILEsecret inYAMLsecret jane EncryptionConfiguration ordinary")))
	if want := strings.Repeat(Mark+" ", 4) + "jane EncryptionConfiguration ordinary"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
