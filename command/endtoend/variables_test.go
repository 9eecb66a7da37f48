package endtoend

import (
	"strings"
	"testing"
)

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
