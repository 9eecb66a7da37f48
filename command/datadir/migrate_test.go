package datadir

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/migrate"
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
