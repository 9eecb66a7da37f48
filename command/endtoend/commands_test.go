package endtoend

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/internal/version"
)

func TestVersion(t *testing.T) {
	t.Parallel()
	if got := karve(t, "version"); !strings.Contains(got, version.Kubernetes) || !strings.Contains(got, runtime.Version()) {
		t.Errorf("karve version: got %q, want %s and %s in it", got, version.Kubernetes, runtime.Version())
	}
	if got := karve(t, "--version"); got != "karve "+version.Full()+", Kubernetes "+version.Kubernetes+"\n" {
		t.Errorf("karve --version: got %q", got)
	}
	var v struct{ Karve, Kubernetes, Go, Platform string }
	if err := json.Unmarshal([]byte(karve(t, "version", "-o", "json")), &v); err != nil {
		t.Fatal(err)
	}
	if want := runtime.GOOS + "/" + runtime.GOARCH; v.Karve != version.Full() || v.Kubernetes != version.Kubernetes || v.Platform != want {
		t.Errorf("karve version -o json: got %+v, want %s, %s, %s", v, version.Full(), version.Kubernetes, want)
	}
	kubectl := karve(t, "kubectl", "version", "--client")
	if !strings.Contains(kubectl, version.Full()) {
		t.Errorf("karve kubectl version: got %q, want %s in it", kubectl, version.Full())
	}
}

// Options may stand anywhere but after "--" and in the command of karve run.
func TestOptionsAnywhere(t *testing.T) {
	t.Parallel()
	nope := filepath.Join(t.TempDir(), "nope")
	for _, args := range []string{
		"status --data-dir %s", "--data-dir %s status", "--data-dir=%s status", "reset b1.db --yes --data-dir %s", "snapshot file --data-dir %s",
		"certs renew serving --data-dir %s", "certs --data-dir %s list", "--data-dir %s kubectl get ns", "kubectl get --data-dir %s ns",
		"backup create --data-dir %s -- file",
	} {
		got := finish(t, command(t, "karve", strings.Fields(fmt.Sprintf(args, nope))...))
		if got.code == 0 || !strings.Contains(got.stderr, nope) {
			t.Errorf("karve %s: got %+v, want an error about the directory", args, got)
		}
	}
	if got := karve(t, "run", "echo", "--data-dir", "--", "-n"); got != "--data-dir -- -n\n" {
		t.Errorf("karve run changed the arguments of its command: %q", got)
	}
	if got := finish(t, command(t, "karve", "backup", "verify", "--", "--data-dir")); !strings.Contains(got.stderr, "--data-dir: no such file") {
		t.Errorf(`an argument after "--": got %+v`, got)
	}
}

// In karve run, the commands of karve find its server.
func TestCommandsInRun(t *testing.T) {
	parallel(t)
	self := command(t, "karve").Path
	for _, args := range [][]string{{"status"}, {"certs", "list"}, {"kubeconfig"}, {"wait"}} {
		karve(t, slices.Concat([]string{"run", "--", "env", asKarve + "=1", self}, args)...)
	}
}

// What others have written into files, and their names, does not control the terminal of root.
func TestControlCharacters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	users := filepath.Join(dir, "certs", "users")
	if err := os.MkdirAll(users, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(users, "a\x1b[2J.crt"), []byte("none"), 0o600); err != nil {
		t.Skipf("no file may have such a name: %v", err)
	}
	for _, args := range [][]string{{"certs", "list", "--data-dir", dir}, {"backup", "verify", filepath.Join(users, "b\x1b[2J")}} {
		got := finish(t, command(t, "karve", args...))
		if all := got.stdout + got.stderr; strings.Contains(all, "\x1b") || !strings.Contains(all, `\x1b[2J`) {
			t.Errorf("%q: got %q, want the name quoted", args, all)
		}
	}
}

// TestWrongCommands has mistakes on the command line but for the server's.
func TestWrongCommands(t *testing.T) {
	t.Parallel()
	empty, file := t.TempDir(), write(t, "app.yaml", "kind: ConfigMap\n")
	for _, tc := range []struct {
		args string
		want string // in the one line on standard error
	}{
		{"sever", "did you mean karve server?"},
		{"quite-something-else", `there is no command "karve quite-something-else" (see karve --help)`},
		{"get pods -A", `there is no command "karve get"; did you mean karve kubectl get?`},
		{"create deployment x", "did you mean karve kubectl create?"},
		{"create cluster", "karve server starts a cluster"},
		{"start", "karve server starts a cluster"},
		{"stop", "systemctl stop karve"},
		{"run --secure-port abc -- true", `--secure-port "abc": want a number from 0 to 65535 (see karve run --help)`},
		{"--secure-port 1", "--secure-port is an option of a command: karve server --secure-port …"},
		{"completion tcsh", `takes bash, zsh or fish, got "tcsh"`},
		{"kubeconfig --data-dir " + empty, "no server has been started in " + empty},
		{"kubeconfig --config /nowhere", "--config: open /nowhere"},
		{"kubeconfig --data-dir " + filepath.Join(empty, "nope"), "no server has been started in " + filepath.Join(empty, "nope")},
		{"status --data-dir " + filepath.Join(empty, "nope"), "no server has been started in " + filepath.Join(empty, "nope")},
		{"--wrong", "there is no option --wrong; see karve --help"},
		{"server --scure-port 1", "did you mean --secure-port?"},
		{"server --secure-port abc", `--secure-port "abc": want a number from 0 to 65535 (see karve server --help)`},
		{"server --all", "--all belongs to --help"},
		{"run --simulate-nodes -- true", "--simulate-nodes --: \"--\" is not a number of nodes"},
		{"server word", `karve server takes options only, got "word"`},
		{"status --data-dri x", "did you mean --data-dir?"},
		{"kubeconfig --into - --data-dir " + empty, "--into -: want a file to merge into; without --into and --merge, the kubeconfig is printed"},
		{"kubeconfig --merge=perhaps", `--merge "perhaps": want true or false (see karve kubeconfig --help)`},
		{"certs lst", `there is no command "karve certs lst"; did you mean karve certs list?`},
		{"datastore compact --data-dir x", `there is no command "karve datastore compact" (see karve datastore --help)`},
		{"certs lst --data-dir x", "did you mean karve certs list?"},
		{"backup create --over-write x", "did you mean --overwrite?"},
		{"certs list --data-dir " + file, "--data-dir " + file + " is a file: name a directory"},
		{"server --secure-port 0 --data-dir " + file, file + " is a file: name a directory"},
		{"backup verify " + file, file + ": not a backup of a cluster"},
		{"certs list --data-dir " + empty, "no server has been started in " + empty},
		{"certs renew --data-dir " + empty, "no server has been started in " + empty},
	} {
		t.Run(tc.args, func(t *testing.T) {
			wantProblems(t, finish(t, command(t, "karve", strings.Fields(tc.args)...)), tc.want)
		})
	}
}

// wantProblems checks that a command has refused to start with exactly these
// lines (in any order), each given by strings that it contains.
func wantProblems(t *testing.T, got outcome, want ...string) {
	t.Helper()
	if got.code != 1 {
		t.Errorf("exit code: got %d, want 1", got.code)
	}
	if got.stdout != "" {
		t.Errorf("standard output: got %q, want nothing", got.stdout)
	}
	if stack(got.stderr) != "" || strings.Contains(got.stderr, ".go:") {
		t.Errorf("standard error has a stack: %s", got.stderr)
	}
	lines := strings.Split(strings.TrimSuffix(got.stderr, "\n"), "\n")
	if len(lines) != len(want) {
		t.Errorf("got %d lines, want %d:\n%s", len(lines), len(want), got.stderr)
	}
	for _, line := range lines {
		if !strings.HasPrefix(line, "karve: ") {
			t.Errorf("got a line %q, want karve: and a problem", line)
		}
	}
	for _, w := range want {
		found := false
		for _, line := range lines {
			all := true
			for part := range strings.SplitSeq(w, "…") {
				all = all && strings.Contains(line, part)
			}
			found = found || all
		}
		if !found {
			t.Errorf("got\n%swant a line with %s", got.stderr, w)
		}
	}
}

func TestCompletion(t *testing.T) {
	t.Parallel()
	scripts := map[string]string{}
	for shell, want := range map[string]string{"bash": "complete ", "zsh": "#compdef karve", "fish": "complete "} {
		scripts[shell] = karve(t, "completion", shell)
		if !strings.Contains(scripts[shell], want) {
			t.Errorf("karve completion %s: got %q, want %q in it", shell, scripts[shell], want)
		}
		path, err := exec.LookPath(shell)
		if err != nil {
			t.Logf("no %s to check the syntax with", shell)
			continue
		}
		if out, err := exec.Command(path, "-n", write(t, "script", scripts[shell])).CombinedOutput(); err != nil {
			t.Errorf("%s -n: %v\n%s", shell, err, out)
		}
	}

	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("no bash here")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(self, filepath.Join(bin, "karve")); err != nil {
		t.Fatal(err)
	}
	script := write(t, "karve.bash", scripts["bash"])
	for _, tc := range []struct {
		words string // the last is being completed; a lone - is an empty one
		want  string
	}{
		{"karve ser", "server"},
		{"karve certs -", "etcd-member list renew rotate-ca"},
		{"karve server --secure-p", "--secure-port"},
		{"karve server --insecure-a", "--insecure-allow-remote --insecure-any-user"},
		{"karve kubectl vers", "version"},
		{"karve nothing-begins-so", ""},
		{"karve server --durability -", "full relaxed"},
		{"karve server --durability = rel", "relaxed"},
		{"karve server --durability = =", ""},
		{"karve run --log-format j", "json"},
		{"karve status -o -", "json table"},
		{"karve addons apply coredns -o -", "yaml"},
		{"karve manifests -", "apply prune"},
		{"karve server --data-dir -", ""}, // a file: the shell's own proposals
		{"karve completion -", "bash fish zsh"},
		{"karve version -", ""},
	} {
		t.Run(tc.words, func(t *testing.T) {
			words := strings.Fields(tc.words)
			if last := len(words) - 1; words[last] == "-" {
				words[last] = ""
			}
			cmd := command(t, "bash", append([]string{"-c",
				`source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _karve; printf '%s\n' "${COMPREPLY[@]}"`, script}, words...)...)
			cmd.Path = bash
			cmd.Env = append(cmd.Env, "PATH="+bin+":"+os.Getenv("PATH"))
			got := strings.Fields(succeed(t, cmd))
			slices.Sort(got)
			if got := strings.Join(got, " "); got != tc.want {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
}
