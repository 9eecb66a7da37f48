package endtoend

import (
	"regexp"
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
		"check", "envtest-assets", "completion", "version"} {
		if !strings.Contains(want, "\n  "+command+" ") {
			t.Errorf("karve: got %s\nwant %s in it", want, command)
		}
		if got := karve(t, command, "--help"); command != "kubectl" && !strings.HasPrefix(got, "Usage: karve "+command) {
			t.Errorf("karve %s --help: got %q", command, got)
		}
	}
	for _, name := range helpOfAll(t, want) {
		if !strings.HasPrefix(karve(t, append(strings.Fields(name), "--help")...), "Usage: karve "+name) {
			t.Errorf("karve %s --help does not begin with its usage", name)
		}
	}
	if got := karve(t, "backup", "verify", "--help"); !strings.HasPrefix(got, "Usage: karve backup verify [OPTION...] FILE\n") {
		t.Errorf("karve backup verify --help: got %q", got)
	}
	if got := karve(t, "kubectl", "--help"); !strings.Contains(got, "KARVE_DATA_DIR") || !strings.Contains(got, "--data-dir DIR") {
		t.Errorf("karve kubectl --help: got %q, want how it finds its server", got)
	}
}

var commandLine = regexp.MustCompile(`(?m)^  ([a-z][a-z-]*)  `)

// helpOfAll names the commands in help, and those below them.
func helpOfAll(t *testing.T, help string, above ...string) (all []string) {
	for _, line := range commandLine.FindAllStringSubmatch(help, -1) {
		if line[1] == "help" || line[1] == "kubectl" { // which has kubectl's help
			continue
		}
		command := append(slices.Clone(above), line[1])
		all = append(all, strings.Join(command, " "))
		all = append(all, helpOfAll(t, karve(t, append(command, "--help")...), command...)...)
	}
	return all
}
