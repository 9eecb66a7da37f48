package datadir

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/kine/migrate"
)

// migrateContext calls do with what karve datastore migrate gets from these arguments.
func migrateContext(t *testing.T, args []string, do func(*cli.Context)) {
	t.Helper()
	called := false
	app := &cli.App{
		Flags:  append([]cli.Flag{options.Config(), options.DataDir(), options.DatastoreEndpoint()}, options.Migration()...),
		Before: options.ReadDataDir,
		Action: func(c *cli.Context) error {
			called = true
			do(c)
			return nil
		},
	}
	if err := app.RunContext(t.Context(), append([]string{"karve"}, args...)); err != nil || !called {
		t.Fatalf("%v: %v", args, err)
	}
}

// The command that is printed never starts the old cluster.
func TestNextServer(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(config, []byte("datastore-endpoint: http://127.0.0.1:1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args        []string
		next, notes string
	}{
		{[]string{"--from", "http://127.0.0.1:1", "--to", "sqlite://"}, "karve server --data-dir " + dir, ""},
		{[]string{"--datastore-endpoint", "http://127.0.0.1:1", "--to", "sqlite://"}, "karve server --data-dir " + dir + " --datastore-endpoint sqlite://", ""},
		{[]string{"--config", config, "--to", "sqlite://"}, "karve server --config " + config + " --data-dir " + dir + " --datastore-endpoint sqlite://", config + " has datastore-endpoint: remove it there"},
		{[]string{"--config", config, "--to", "http://127.0.0.1:2"}, "karve server --config " + config + " --data-dir " + dir + " --datastore-endpoint http://127.0.0.1:2", config + " has datastore-endpoint"},
		{[]string{"--to", "http://127.0.0.1:2"}, "karve server --data-dir " + dir + " --datastore-endpoint http://127.0.0.1:2", dir + "/mvcc.db stays as it is. A start without the new datastore-endpoint runs the old cluster"},
	} {
		migrateContext(t, append([]string{"--data-dir", dir}, tc.args...), func(c *cli.Context) {
			from, fromErr := migrationSource(c)
			to, toErr := migrationTarget(c)
			if fromErr != nil || toErr != nil {
				t.Fatal(fromErr, toErr)
			}
			if next := nextServer(c, to); next != tc.next {
				t.Errorf("%v: %s, want %s", tc.args, next, tc.next)
			}
			if notes := strings.Join(migrationNotes(c, from, to, 0), "; "); !strings.HasPrefix(notes, tc.notes) || (tc.notes == "") != (notes == "") {
				t.Errorf("%v: %q, want %q", tc.args, notes, tc.notes)
			}
		})
	}
	if notes := migrationNotes(cli.NewContext(cli.NewApp(), nil, nil), migrate.End{}, migrate.End{}, 3); len(notes) != 1 || !strings.HasPrefix(notes[0], "3 values are encrypted") {
		t.Errorf("%q, want the encrypted values", notes)
	}
}

// A URL with a password is refused only where other users can see it.
func TestSecretOnCommandLine(t *testing.T) {
	args := os.Args
	defer func() { os.Args = args }()
	for endpoint, refused := range map[string]bool{
		"postgres://karve:secret@db/x":              true,
		"postgres://karve@db/x":                     false,
		"postgres://db:5432/x?application_name=a@b": false,
		"postgres://db/x?password=secret":           true,
		"mysql://karve:se?cret@tcp(db:3306)/x":      true,
		"mysql://karve@tcp(db:3306)/x?loc=a:b@c":    false,
		"http://karve:secret@db:2379":               true,
	} {
		os.Args = []string{"karve", "--to", "x"}
		if err := secretOnCommandLine("--to", endpoint, "VARIABLE"); err != nil {
			t.Errorf("%s is not on the command line: %v", endpoint, err)
		}
		for _, os.Args = range [][]string{{"karve", "--to", endpoint}, {"karve", "--to=" + endpoint}} {
			if err := secretOnCommandLine("--to", endpoint, "VARIABLE"); (err != nil) != refused {
				t.Errorf("%s: %v, want refused: %v", endpoint, err, refused)
			}
		}
	}
}

// Keys with another prefix would be left out.
func TestMigrationRefusesAPrefix(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config.yaml")
	for text, refused := range map[string]bool{
		"kube-apiserver-arg: [v=1, etcd-prefix=/one]\n":    true,
		"kube-apiserver-arg: etcd-prefix=/registry\n":      false,
		"kube-apiserver-arg: service-cluster-ip-range=x\n": false,
	} {
		if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		migrateContext(t, []string{"--config", config}, func(c *cli.Context) {
			if err := checkPrefix(c); (err != nil) != refused {
				t.Errorf("%s: %v, want refused: %v", text, err, refused)
			}
		})
	}
}

// What root makes inside a service's directory is the service's.
func TestMigrationActsAsTheOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can act as somebody else")
	}
	const stranger = 54321
	service, err := os.MkdirTemp("", "migrate")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(service) })
	if err := os.Chown(service, stranger, stranger); err != nil {
		t.Fatal(err)
	}
	roots := t.TempDir()
	for _, tc := range [][4]string{ // to, from, the data directory, and the one that counts
		{filepath.Join(service, "a", "b"), "", roots, service},
		{filepath.Join(roots, "new"), "", service, service},
		{filepath.Join(roots, "new"), service, roots, service},
		{roots, service, service, roots},
		{"", "", service, service},
		{"", "", filepath.Join(roots, "none"), ""},
	} {
		if got := migrationOwner(tc[0], tc[1], tc[2]); got != tc[3] {
			t.Errorf("%v: the owner of %q", tc, got)
		}
	}
	made := filepath.Join(service, "a", "b")
	err = asOwnerOf(migrationOwner(made, "", roots), func() error { return os.MkdirAll(made, 0o700) })
	info, statErr := os.Stat(filepath.Dir(made))
	if err := errors.Join(err, statErr); err != nil {
		t.Fatal(err)
	}
	if owner := info.Sys().(*syscall.Stat_t).Uid; owner != stranger {
		t.Errorf("made as %d, want %d", owner, stranger)
	}
}
