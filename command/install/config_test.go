package install

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestReadOptions(t *testing.T) {
	t.Parallel()
	known := Known{"secure-port": true, "tls-san": true, "no-controllers": false, "config": true}
	given, node, err := ReadOptions(
		strings.Fields("server --tls-san a --tls-san=b --no-controllers --secure-port= --with-node --node-name x"),
		[]string{"KARVE_SECURE_PORT=1", "KARVE_TLS_SAN=c", "KARVE_BINARY=x", "KARVE_NO_CONTROLLERS=", "HOME=/"}, known)
	want := Options{"tls-san": {"a", "b"}, "no-controllers": {"true"}, "secure-port": nil}
	if err != nil || !reflect.DeepEqual(given, want) || !reflect.DeepEqual(node, []string{"--node-name", "x"}) {
		t.Errorf("got %v, %q, %v, want %v", given, node, err, want)
	}
	if _, node, _ := ReadOptions([]string{"--with-node"}, nil, known); node == nil {
		t.Error("--with-node without more is not seen")
	}
	for mistake, says := range map[string]string{
		"--secure-prot 1":  "did you mean --secure-port?",
		"--secure-port":    "--secure-port needs a value",
		"stray":            `got "stray"`,
		"--config x":       "leave it out",
		"--tls-san a\nb":   "line break",
		"KARVE_SECUREPORT": "KARVE_SECUREPORT: there is no option",
	} {
		args, environ := []string{}, []string{}
		if strings.HasPrefix(mistake, "KARVE_") {
			environ = []string{mistake + "=1"}
		} else {
			args = strings.SplitN(mistake, " ", 2)
		}
		if _, _, err := ReadOptions(args, environ, known); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: got %v, want %q", mistake, err, says)
		}
	}
}

func TestConfigKeepsWhatIsNotGiven(t *testing.T) {
	t.Parallel()
	const text = "# of the board\ntls-san: # names\n- a\n  - b\n# ports\n\"secure-port\": 1 # one\ndata-dir: /srv/karve/"
	c, err := newConfig([]byte(text), Options{"secure-port": {"443"}, "tls-san": nil}, "/var/lib/karve")
	const want = "# of the board\n# ports\nsecure-port: '443' # one\ndata-dir: /srv/karve/"
	if err != nil || string(c.text) != want || c.dataDir != "/srv/karve" || c.storeDir != "/srv/karve" || !c.lowPort() {
		t.Errorf("got %q, %+v, %v, want %q", c.text, c, err, want)
	}
	c, err = newConfig([]byte("datastore-endpoint: 'sqlite:///srv/store?durability=relaxed'\netcd-listen: https://:2379\n"), nil, "/var/lib/karve")
	if err != nil || c.storeDir != "/srv/store" || len(c.directories()) != 2 || c.lowPort() || c.external() {
		t.Errorf("got %+v, %v", c, err)
	}
	if c, err = newConfig([]byte("datastore-endpoint: http://127.0.0.1:2379\n"), nil, "/d/k"); err != nil || !c.external() || c.hasData() {
		t.Errorf("got %+v, %v", c, err)
	}
	if _, err := newConfig([]byte("a: [\n"), nil, "/d/k"); err == nil {
		t.Error("a file that is no YAML is accepted")
	}
}

// A new installation backs itself up daily. One that exists stays as it is.
func TestNewConfigHasABackupSchedule(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		text  string
		given Options
		want  string
	}{
		"new":             {"", nil, "backup-schedule: '@daily'\n"},
		"with another":    {"", Options{"backup-schedule": {"@weekly"}}, "backup-schedule: '@weekly'\n"},
		"without":         {"", Options{"backup-schedule": nil}, ""},
		"of a database":   {"", Options{"datastore-endpoint": {"postgres://db/karve"}}, ""},
		"there is one":    {"secure-port: 1\n", nil, ""},
		"there is no new": {"secure-port: 1\n", Options{"secure-port": {"2"}}, ""},
	} {
		c, err := newConfig([]byte(test.text), test.given, "/var/lib/karve")
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got := c.text; strings.Contains(string(got), "backup-schedule") != (test.want != "") || !strings.Contains(string(got), test.want) {
			t.Errorf("%s: got %q, want %q in it", name, got, test.want)
		}
	}
}

func TestOthersDirectoriesAreRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	other := filepath.Join(dir, "other")
	if err := os.MkdirAll(other, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(other, "mail"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, says := range map[string]string{
		"relative/path": "want an absolute path", "/etc": "below a directory", "/a b/c": "letters, digits", "/a/../etc/x": "letters, digits",
		"/etc/ssl": "other files than Karve's", other: "other files than Karve's", filepath.Join(other, "mail"): "not a directory",
		filepath.Join(dir, "new"): "",
	} {
		c, err := newConfig(nil, Options{"data-dir": {path}}, "/var/lib/karve")
		if err == nil {
			err = c.checkDirectories()
		}
		if says == "" && err != nil || says != "" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: got %v, want %q", path, err, says)
		}
	}
}
