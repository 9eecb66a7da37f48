package redact

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	for text, secret := range map[string]string{
		"dial postgres://karve:hunter2@db/k: refused":                                             "hunter2",
		`endpoint=mysql://u:p@ss:w/rd@tcp(db:3306)/k`:                                             "ss:w/rd",
		"postgres://db/k?user=a&password=hunter2&sslmode=off":                                     "hunter2",
		`{"password": "two words", "a": 1}`:                                                       "words",
		"KARVE_DATASTORE_ENDPOINT=u:hunter2":                                                      "hunter2",
		"--datastore-endpoint\nu:hunter2":                                                         "hunter2",
		"Authorization: Bearer abcdefgh12345":                                                     "abcdefgh",
		"token abcdef.0123456789abcdef is valid":                                                  "0123456789abcdef",
		"eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJl.c2ln":                                              "eyJpc3Mi",
		"a\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQ\n-----END EC PRIVATE KEY-----":                 "MHcCAQ",
		"client-key-data: LS0tLS1CRUdJTiBQUklWQVRFIEtFWS0tLS0tCk1Hd0NBUUE=":                       "CRUdJTiBQ",
		"AGE-SECRET-KEY-1QQPZRY9X8GF2TVDW0S3JN54KHCE6MUA7L":                                       "PZRY9X8",
		`error=".stringData.a: expected string, got &value.valueUnstructured{Value:\"hunter2\"}"`: "hunter2",
		"my_api_key='hunter2'":                                                                    "hunter2",
		"password=a,hunter2;b&c":                                                                  "hunter2",
		"token=abc,password=hunter2":                                                              "hunter2",
		"GET /api?access_token=hunter2;x&watch=1":                                                 "hunter2",
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

// What follows a secret stays, such as the rest of a query.
func TestRedactEndsWithTheSecret(t *testing.T) {
	for text, want := range map[string]string{
		"token=abc,password=x,user=y":                   "token=" + Mark + ",password=" + Mark + ",user=y",
		"/api?token=a;b&watch=1&amp;password=c&limit=5": "/api?token=" + Mark + "&watch=1&amp;password=" + Mark + "&limit=5",
		"{password: x, user: y}, and more":              "{password: " + Mark + ", user: y}, and more",
		"(token=abc), see above":                        "(token=" + Mark + "), see above",
	} {
		if got := string(new(Secrets).Redact([]byte(text))); got != want {
			t.Errorf("%s: got %s, want %s", text, got, want)
		}
	}
}

// quotings are the ways in which a text gets into the files: plain, in the server's log, in JSON, and in the page.
var quotings = map[string]func(text string) string{
	"plain": func(text string) string { return text },
	"log":   func(text string) string { return fmt.Sprintf("msg=%q", text) },
	"JSON": func(text string) string {
		made, _ := json.Marshal(map[string]string{"message": text})
		return string(made)
	},
	"HTML": func(text string) string {
		var made bytes.Buffer
		_ = template.Must(template.New("").Parse("<p>{{.}}</p>")).Execute(&made, text)
		return made.String()
	},
}

// A secret is found however often the text with it has been quoted.
func TestQuoted(t *testing.T) {
	const known = `hunter2 "x"&<y>'z'\+/?%`
	var s Secrets
	s.add("hunter")
	s.add(known)
	for name, quote := range quotings {
		for again, quoteAgain := range quotings {
			if name == "HTML" { // the page is in nothing else
				continue
			}
			for _, text := range []string{"it is " + known + ".", `{"password":"hunter2 \"x\""}`, `{"password": "hunter2"}`, `password="hunter2 x"`, `token: 'hunter2'`, "Bearer hunter2+x/y12="} {
				whole := quoteAgain(quote(text))
				secrets := &s
				if !strings.Contains(text, known) {
					secrets = new(Secrets)
				}
				got := string(secrets.Redact([]byte(whole)))
				if strings.Contains(got, "unter2") || !strings.Contains(got, Mark) {
					t.Errorf("%s in %s: %s: got %s", name, again, whole, got)
				}
				if secrets == &s && strings.Contains(got, "x") {
					t.Errorf("%s in %s: the end remains: %s", name, again, got)
				}
			}
		}
	}
}

// A value of the configuration ends where the next option begins, and those of comments count.
func TestConfig(t *testing.T) {
	got := string(Config([]byte("KARVE_DATASTORE_ENDPOINT=mysql://u:two words@h\n--datastore-endpoint\nmysql://u:two words@h\n--token-auth-file\n/etc/t\nsecure-port: 7443\n# old password: two words\ndatastore-endpoint: mysql://u:two words@tcp(db)/k\ncluster-token-file: /etc/token\n")))
	if want := "KARVE_DATASTORE_ENDPOINT=" + Mark + "\n--datastore-endpoint\n" + Mark + "\n--token-auth-file\n/etc/t\nsecure-port: 7443\n# old password:" + Mark + "\ndatastore-endpoint:" + Mark + "\ncluster-token-file: /etc/token\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestConfigOfSeveralLines(t *testing.T) {
	for _, value := range []string{" >-\n  mysql://u:two hunter2@h", " |\n\n  hunter2\n\n  more", "\n  hunter2 words", " \"mysql://u:two\n  hunter2@h\""} {
		text := "datastore-endpoint:" + value + "\nsecure-port: 7443\n"
		if got, want := string(Config([]byte(text))), "datastore-endpoint:"+Mark+"\nsecure-port: 7443\n"; got != want {
			t.Errorf("%q: got %q, want %q", text, got, want)
		}
	}
	got := string(Config([]byte("kube-apiserver-arg:\n- token-auth-file=/etc/t\n- etcd-token=two words\n- v=2\ncluster-token-file:\n  /etc/t\n")))
	if want := "kube-apiserver-arg:\n- token-auth-file=/etc/t\n- etcd-token=" + Mark + "\n- v=2\ncluster-token-file:\n  /etc/t\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := string(Config([]byte("a:\n  - token-auth-file=/etc/t\n  - etcd-token=two words\n"))); strings.Contains(got, "words") {
		t.Errorf("an option after a file: got %q", got)
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
	s.Learn([]byte("datastore-endpoint: postgres://u:inURLsecret@db/k\nmigrate-from: postgres://u:escaped%40secret@db/k\n" +
		"token-auth-file: " + write("tokens.csv", "inCSVsecret,jane,1\n\"quotedSecret\",joe,2\n") + "\n" +
		"KARVE_CLUSTER_TOKEN_FILE=" + write("token", "inFILEsecret\n") + "\n" +
		"--encryption-provider-config\n" + write("e.yaml", "kind: EncryptionConfiguration\nkeys: [{name: k, secret: inYAMLsecret}]\n") + "\n" +
		"token-config: " + write("k.json", `{"kind": "Config", "users": [{"user": {"token": "inJSONsecret", "password": "alsoInJSON"}}]}`) + "\n" +
		"manifests-dir: " + write("other", "ordinary\n")))
	got := string(s.Redact([]byte("inURLsecret inCSVsecret inFILEsecret inYAMLsecret inJSONsecret alsoInJSON escaped@secret quotedSecret jane EncryptionConfiguration ordinary")))
	if want := strings.Repeat(Mark+" ", 8) + "jane EncryptionConfiguration ordinary"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
