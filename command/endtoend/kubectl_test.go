package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestKubectlFindsItsServer(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir(), bare...)
	if got := karve(t, "kubectl", "--data-dir", p.dir, "get", "namespace", "default", "-o", "name"); got != "namespace/default\n" {
		t.Errorf("karve kubectl --data-dir: got %q", got)
	}
	cmd := command(t, "karve", "kubectl", "get", "namespace", "default", "-o", "name")
	cmd.Env = append(cmd.Env, "KARVE_DATA_DIR="+p.dir)
	if got := succeed(t, cmd); got != "namespace/default\n" {
		t.Errorf("karve kubectl with KARVE_DATA_DIR: got %q", got)
	}
	cmd = command(t, "karve", "kubectl", "get", "namespace", "default", "-o", "name")
	cmd.Env = append(cmd.Env, "KUBECONFIG="+strings.Join([]string{"/nowhere/at/all", p.kubeconfig}, string(filepath.ListSeparator)))
	if got := succeed(t, cmd); got != "namespace/default\n" {
		t.Errorf("karve kubectl with one of two files in KUBECONFIG: got %q", got)
	}
	p.stop()
	cmd = command(t, "karve", "kubectl", "get", "namespaces")
	cmd.Env = append(cmd.Env, "KARVE_DATA_DIR="+p.dir)
	wantProblems(t, finish(t, cmd), "no server runs in "+p.dir+": start one with karve server, or name the data directory of another with --data-dir or KARVE_DATA_DIR")
}

func TestKubectlWithoutAServer(t *testing.T) {
	t.Parallel()
	nope := filepath.Join(t.TempDir(), "nope")
	wantProblems(t, finish(t, command(t, "karve", "kubectl", "--data-dir", nope, "get", "namespaces")),
		"no server has been started in "+nope+": start one with karve server, or name the data directory of another")
	wantProblems(t, finish(t, command(t, "karve", "kubectl", "--data-dir")), "--data-dir needs a directory")
	misspelt := command(t, "karve", "kubectl", "get", "namespaces")
	misspelt.Env = append(misspelt.Env, "KARVE_DATADIR=/x")
	wantProblems(t, finish(t, misspelt), "there is no variable KARVE_DATADIR; did you mean KARVE_DATA_DIR?")
	// What needs no server works.
	if got := karve(t, "kubectl", "--data-dir", nope, "version", "--client"); !strings.Contains(got, "Client Version") {
		t.Errorf("karve kubectl version --client: got %q", got)
	}
}

// kubectl would try localhost:8080, where another server may listen.
func TestKubectlWithoutACluster(t *testing.T) {
	t.Parallel()
	const noContext = `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"k","cluster":{"server":"http://127.0.0.1:1"}}]}`
	const noCluster = `{"apiVersion":"v1","kind":"Config","current-context":"c","contexts":[{"name":"c","context":{"cluster":"gone"}}]}`
	nope, empty, other := filepath.Join(t.TempDir(), "nope"), write(t, "empty", ""), write(t, "other", noContext)
	const missing, without = "no such file: correct it, or unset KUBECONFIG", "it has no current context with a cluster: name a context with --context"
	for _, test := range []struct{ program, variable, option, want string }{
		{"karve", nope, "", "KUBECONFIG=" + nope + ": " + missing},
		{"kubectl", nope, "", "KUBECONFIG=" + nope + ": " + missing},
		{"karve", nope + ":" + nope + "2", "", "KUBECONFIG=" + nope + ":" + nope + "2: " + missing},
		{"karve", nope + ":" + empty, "", without},
		{"kubectl", empty, "", "KUBECONFIG=" + empty + ": " + without},
		{"karve", other, "", "KUBECONFIG=" + other + ": " + without},
		{"karve", write(t, "cluster", noCluster), "", without},
		{"karve", "", empty, "--kubeconfig " + empty + ": " + without},
		{"karve", other, empty, "--kubeconfig " + empty + ": " + without},
		{"kubectl", "", other, "--kubeconfig " + other + ": " + without},
	} {
		run := func(args ...string) outcome {
			if test.program == "karve" {
				args = append([]string{"kubectl"}, args...)
			}
			cmd := command(t, test.program, append(args, "--kubeconfig="+test.option)...)
			cmd.Env = append(cmd.Env, "KUBECONFIG="+test.variable)
			return finish(t, cmd)
		}
		wantProblems(t, run("get", "namespaces"), test.want)
		if got := run("create", "namespace", "x", "--dry-run=client", "-o", "name"); got.code != 0 || got.stdout != "namespace/x\n" {
			t.Errorf("KUBECONFIG=%s --kubeconfig=%s: what needs no cluster: got %+v", test.variable, test.option, got)
		}
	}
	missingOption := finish(t, command(t, "karve", "kubectl", "--kubeconfig", nope, "get", "namespaces"))
	if missingOption.code == 0 || !strings.Contains(missingOption.stderr, nope) {
		t.Errorf("--kubeconfig with a file that is missing: got %+v", missingOption)
	}
}

// KUBECONFIG and PATH would take such a directory for two.
func TestColonInDirectory(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "with:colon")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	const why = `has a ':', which separates the files of KUBECONFIG: choose another directory`
	wantProblems(t, finish(t, command(t, "karve", "server", "--data-dir", dir)), "--data-dir: "+dir+" "+why)
	wantProblems(t, finish(t, command(t, "karve", "run", "--data-dir", dir, "--", "true")), "--data-dir: "+dir+" "+why)
	wantProblems(t, finish(t, command(t, "karve", "kubectl", "--data-dir", dir, "get", "namespaces")), dir+"/admin.kubeconfig "+why)
	run := command(t, "karve", "run", "--", "true")
	run.Env = append(run.Env, "TMPDIR="+dir)
	wantProblems(t, finish(t, run), "the temporary directory (TMPDIR): "+dir+" "+why)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
}

func TestStatusOfAll(t *testing.T) {
	parallel(t)
	one := start(t, t.TempDir(), bare...)
	other := start(t, t.TempDir(), bare...)
	// Tests beside this one, and other users of the machine, have servers too: their states decide
	// about the exit code.
	rows := func() map[string][]string {
		rows := map[string][]string{}
		for line := range strings.Lines(finish(t, command(t, "karve", "status", "--all")).stdout) {
			if fields := strings.Fields(line); len(fields) > 0 {
				rows[fields[0]] = fields
			}
		}
		return rows
	}
	all := rows()
	for _, p := range []*process{one, other} {
		dir, err := filepath.EvalSymlinks(p.dir)
		if err != nil {
			t.Fatal(err)
		}
		if row := strings.Join(all[dir], " "); !strings.HasPrefix(row, fmt.Sprintf("%s ready %d ", dir, p.cmd.Process.Pid)) || !strings.Contains(row, p.url) {
			t.Errorf("%s: got %q in %v", dir, row, all)
		}
	}
	one.stop()
	if _, there := rows()[one.dir]; there {
		t.Errorf("%s is listed after its server has stopped", one.dir)
	}
	if got := finish(t, command(t, "karve", "status", "--all", "-o", "json")).stdout; !strings.HasPrefix(got, "[") || strings.Contains(got, "lastBackup") {
		t.Errorf("karve status --all -o json: got %s", got)
	}
}
