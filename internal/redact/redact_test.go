package redact

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html/template"
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
		"dial karve:hunter2@tcp(db:3306)/k: refused":                                              "hunter2",
		"pwd=hunter2":            "hunter2",
		"db_pass: hunter2":       "hunter2",
		"access_key=hunter2":     "hunter2",
		`"accessKey": "hunter2"`: "hunter2",
		`{"auths":{"r.example":{"auth":"aHVudGVyMg=="}}}`:                          "aHVudGVyMg",
		"Cookie: a=b; session=hunter2":                                             "hunter2",
		`Authorization: Digest username="u", response="hunter2"`:                   "hunter2",
		"password: |\n  hunter2\n  and more\n":                                     "hunter2",
		"  stringData:\n    token: >-\n      first\n\n      hunter2\nkind: Secret": "hunter2",
		`"password: |\n  hunter2\n"`:                                               "hunter2",
		"ghp_0123456789abcdefghijhunter2":                                          "hunter2",
		"AKIAIOSFODNN7EXAMPLE":                                                     "IOSFODNN7",
		"post https://hooks.slack.com/services/T0/B0/hunter2: refused":             "hunter2",
		"my_api_key='hunter2'":                                                     "hunter2",
		"password=a,hunter2;b&c":                                                   "hunter2",
		"token=abc,password=hunter2":                                               "hunter2",
		"GET /api?access_token=hunter2;x&watch=1":                                  "hunter2",
	} {
		got := string(Text([]byte(text)))
		if strings.Contains(got, secret) || !strings.Contains(got, Mark) {
			t.Errorf("%s: got %s", text, got)
		}
	}
	for _, text := range []string{
		"token-auth-file: /etc/karve/tokens.csv", "cluster-token-file=/etc/karve/token", "token.go:123 +0x5f", `resource="secrets",verb="list"`,
		"https://127.0.0.1:6443", "state: ready", `"secrets": 5`, `name="token_cleaner"} 0`, "the certificate of user@example.com",
		"datastore-endpoint: " + Set, "bypass: 1", "compass=north", "passed: 3", "author: jane", "the user:group@host", "cookies are none",
	} {
		if got := string(Text([]byte(text))); got != text {
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
		if got := string(Text([]byte(text))); got != want {
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
	for name, quote := range quotings {
		for again, quoteAgain := range quotings {
			if name == "HTML" { // the page is in nothing else
				continue
			}
			for _, text := range []string{`{"password":"hunter2 \"x\""}`, `{"password": "hunter2"}`, `password="hunter2 x"`, `token: 'hunter2'`, "Bearer hunter2+x/y12="} {
				whole := quoteAgain(quote(text))
				if got := string(Text([]byte(whole))); strings.Contains(got, "unter2") || !strings.Contains(got, Mark) {
					t.Errorf("%s in %s: %s: got %s", name, again, whole, got)
				}
			}
		}
	}
}
