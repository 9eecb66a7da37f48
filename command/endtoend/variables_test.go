package endtoend

import (
	"strings"
	"testing"

	"github.com/karve-k8s/karve/command/options"
)

func TestVariables(t *testing.T) {
	t.Parallel()
	var known []string
	for _, name := range options.Names(append(options.Server(), options.Migration()...)) {
		known = append(known, "KARVE_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_")))
	}
	for variable, want := range map[string]string{
		"KARVE_SECURE_PROT=7443": "there is no variable KARVE_SECURE_PROT; did you mean KARVE_SECURE_PORT?",
		"KARVE_DATADIR=/x":       "did you mean KARVE_DATA_DIR?",
		"KARVE_TLSSAN=x":         "did you mean KARVE_TLS_SAN?",
		"KARVE_SECUR_PORT=7443":  "did you mean KARVE_SECURE_PORT?",
		"KARVE_SECURE_PORT=7443": "", "KARVE_AUTHORIZATION_MODE=Node": "",
		// The user's own are left alone, and those of install.sh and of tests.
		"KARVE_COLOUR_OF_THE_SHED=red": "", "KARVETTE=x": "", "PATH=/x": "", "KARVE_BINARY=/x": "", "KARVE_INSTALL_TIMEOUT=5": "", "KARVE_TEST_POSTGRES=1": "",
		"KARVE_DOWNLOAD_URL=x": "", "KARVE_INSTALL_CHECK=no": "", "KARVE_REQUIRE_SIGNATURE=yes": "", "KARVE_VERSION=v1": "", "KARVE_CONTROLLERS=1": "", "KARVE_STORAGE=x": "",
		// In a Pod beside a Service named karve, or karve-api.
		"KARVE_SERVICE_HOST=10.96.0.7": "", "KARVE_SERVICE_PORT=6443": "", "KARVE_SERVICE_PORT_HTTPS=6443": "", "KARVE_PORT=tcp://10.96.0.7:6443": "",
		"KARVE_PORT_6443_TCP=tcp://10.96.0.7:6443": "", "KARVE_PORT_6443_TCP_ADDR=10.96.0.7": "", "KARVE_API_SERVICE_HOST=10.96.0.7": "", "KARVE_API_PORT=tcp://10.96.0.7:6443": "",
	} {
		err := options.CheckVariables([]string{variable}, append(known, options.MigrateFrom, options.MigrateTo))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", variable, err, want)
		}
	}
}

// A misspelt variable stops the command before it does anything, with other problems.
func TestMisspeltVariableStopsTheCommand(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"server"}, {"run", "--", "echo", "ran"}, {"datastore", "stats"}, {"certs", "list"}} {
		cmd := command(t, "karve", args...)
		cmd.Env = append(cmd.Env, "KARVE_DATA_DRI=/nowhere")
		got := finish(t, cmd)
		if got.code != 1 || got.stdout != "" || !strings.Contains(got.stderr, "karve: there is no variable KARVE_DATA_DRI; did you mean KARVE_DATA_DIR?\n") {
			t.Errorf("%v: %+v, want that there is no such variable", args, got)
		}
	}
	for _, args := range [][]string{{"version"}, {"server", "--help"}, {"completion", "bash"}} {
		cmd := command(t, "karve", args...)
		cmd.Env = append(cmd.Env, "KARVE_DATA_DRI=/nowhere")
		if got := finish(t, cmd); got.code != 0 {
			t.Errorf("%v: %+v, want that it does not mind", args, got)
		}
	}
}
