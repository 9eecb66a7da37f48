package endtoend

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/command/options"
)

// helpLines is how many lines the help of a server's options may have: two screens.
const helpLines = 100

func TestHelpFitsTwoScreens(t *testing.T) {
	t.Parallel()
	at := func(args ...string) string { // a user's home, where the default data directory is
		cmd := command(t, "karve", args...)
		cmd.Env = append(cmd.Env, "HOME=/home/user")
		return succeed(t, cmd)
	}
	for _, name := range []string{"server", "run", "check"} {
		help := at(name, "--help")
		lines := strings.Split(strings.TrimSuffix(help, "\n"), "\n")
		if len(lines) > helpLines {
			t.Errorf("karve %s --help has %d lines, want at most %d", name, len(lines), helpLines)
		}
		for _, line := range lines {
			if len(line) > 100 {
				t.Errorf("karve %s --help: a line of %d characters: %s", name, len(line), line)
			}
		}
		for _, want := range []string{"\nGENERAL\n", "\nLISTENERS\n", "\nDATASTORE\n", "  --data-dir DIR", "  --feature-gates", "--help --all"} {
			if !strings.Contains(help, want) {
				t.Errorf("karve %s --help: got %s\nwant %q in it", name, help, want)
			}
		}
		if other := at("help", name); other != help {
			t.Errorf("karve help %s: got %s\nwant what --help prints", name, other)
		}
	}
}

func TestHelpAllHasEveryOption(t *testing.T) {
	t.Parallel()
	lines := strings.Split(karve(t, "server", "--help", "--all"), "\n")
	for _, f := range options.Server() {
		name := "  --" + f.Names()[0]
		if !slices.ContainsFunc(lines, func(line string) bool { return line == name || strings.HasPrefix(line, name+" ") }) {
			t.Errorf("karve server --help --all does not have %s", name)
		}
	}
	if len(lines) < len(options.Server()) {
		t.Errorf("%d lines for %d options", len(lines), len(options.Server()))
	}
}

func TestHelpOfKarve(t *testing.T) {
	t.Parallel()
	want := karve(t)
	for _, args := range [][]string{{"help"}, {"--help"}, {"-h"}} {
		if got := karve(t, args...); got != want {
			t.Errorf("karve %v: got %q, want what karve prints", args, got)
		}
	}
	for _, command := range []string{"server", "run", "status", "kubectl", "kubeconfig", "node", "snapshot", "reset", "datastore", "certs",
		"check", "feature-gates", "envtest-assets", "completion", "version"} {
		if !strings.Contains(want, "\n  "+command+" ") {
			t.Errorf("karve: got %s\nwant %s in it", want, command)
		}
		if got := karve(t, command, "--help"); command != "kubectl" && !strings.HasPrefix(got, "Usage: karve "+command) {
			t.Errorf("karve %s --help: got %q", command, got)
		}
	}
	if got := karve(t, "datastore", "backup", "--help"); !strings.HasPrefix(got, "Usage: karve datastore backup [OPTION...] FILE\n") {
		t.Errorf("karve datastore backup --help: got %q", got)
	}
	if got := karve(t, "kubectl", "--help"); !strings.Contains(got, "KARVE_DATA_DIR") || !strings.Contains(got, "--data-dir DIR") {
		t.Errorf("karve kubectl --help: got %q, want how it finds its server", got)
	}
}

func TestFeatureGates(t *testing.T) {
	t.Parallel()
	var gates []struct {
		Name    string
		Default bool
		Stage   string
		Locked  bool
	}
	if err := json.Unmarshal([]byte(karve(t, "feature-gates", "-o", "json")), &gates); err != nil {
		t.Fatal(err)
	}
	stages := map[string]int{}
	for _, g := range gates {
		stages[g.Stage]++
		if g.Name == "AllAlpha" && (g.Default || g.Stage != "alpha") {
			t.Errorf("got %+v, want it off and alpha", g)
		}
	}
	for _, stage := range []string{"alpha", "beta", "GA", "deprecated"} {
		if stages[stage] == 0 {
			t.Errorf("no gate is %s: %v", stage, stages)
		}
	}
	table := strings.Split(strings.TrimSpace(karve(t, "feature-gates")), "\n")
	if len(table) != len(gates)+1 || strings.Join(strings.Fields(table[0]), " ") != "NAME DEFAULT STAGE" {
		t.Errorf("%d lines that begin with %q, want a header and %d gates", len(table), table[0], len(gates))
	}
	if help := karve(t, "server", "--help", "--all"); strings.Contains(help, "AllAlpha") || !strings.Contains(help, "karve feature-gates") {
		t.Error("karve server --help --all lists feature gates, want a word about karve feature-gates")
	}
}
