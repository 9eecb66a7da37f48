package endtoend

import (
	"fmt"
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
	p.stop()
	cmd = command(t, "karve", "kubectl", "get", "namespaces")
	cmd.Env = append(cmd.Env, "KARVE_DATA_DIR="+p.dir)
	wantProblems(t, finish(t, cmd), "no server in "+p.dir+": start one with karve server, or set KARVE_DATA_DIR")
}

func TestKubectlWithoutAServer(t *testing.T) {
	t.Parallel()
	nope := filepath.Join(t.TempDir(), "nope")
	wantProblems(t, finish(t, command(t, "karve", "kubectl", "--data-dir", nope, "get", "namespaces")),
		"no server in "+nope+": start one with karve server, or set KARVE_DATA_DIR")
	wantProblems(t, finish(t, command(t, "karve", "kubectl", "--data-dir")), "--data-dir needs a directory")
	misspelt := command(t, "karve", "kubectl", "get", "namespaces")
	misspelt.Env = append(misspelt.Env, "KARVE_DATADIR=/x")
	wantProblems(t, finish(t, misspelt), "there is no variable KARVE_DATADIR; did you mean KARVE_DATA_DIR?")
	// What needs no server works.
	if got := karve(t, "kubectl", "--data-dir", nope, "version", "--client"); !strings.Contains(got, "Client Version") {
		t.Errorf("karve kubectl version --client: got %q", got)
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
