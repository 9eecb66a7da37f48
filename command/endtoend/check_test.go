package endtoend

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/command/install/check"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/directory"
)

// findings runs karve check for a server on free ports, and checks its exit code
// against what it found.
func findings(t *testing.T, args ...string) map[string]check.Finding {
	t.Helper()
	args = append([]string{"check", "-o", "json", "--secure-port", "0", "--insecure-port", "-1"}, args...)
	got := finish(t, command(t, "karve", args...))
	var all []check.Finding
	if err := json.Unmarshal([]byte(got.stdout), &all); err != nil {
		t.Fatalf("%v: %q: %v\n%s", args, got.stdout, err, got.stderr)
	}
	code := 0
	if check.Failed(all) > 0 {
		code = 1
	}
	if got.code != code {
		t.Errorf("exit code: got %d, want %d after %+v", got.code, code, all)
	}
	byName := map[string]check.Finding{}
	for _, f := range all {
		byName[f.Check] = f
	}
	return byName
}

func wantFinding(t *testing.T, all map[string]check.Finding, check string, result check.Result, text string) {
	t.Helper()
	if f := all[check]; f.Result != result || !strings.Contains(f.Found+f.Do, text) {
		t.Errorf("%s: got %+v, want %s and %q", check, f, result, text)
	}
}

func TestCheckBeforeTheFirstStart(t *testing.T) {
	t.Parallel()
	above := t.TempDir()
	dir := filepath.Join(above, "a", "data")
	all := findings(t, "--data-dir", dir)
	wantFinding(t, all, "configuration", check.OK, "")
	wantFinding(t, all, "data directory", check.OK, dir+" will be created")
	wantFinding(t, all, "datastore", check.OK, "none yet")
	wantFinding(t, all, "port secure-port", check.OK, "any free port")
	if left, err := os.ReadDir(above); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}
	table := finish(t, command(t, "karve", "check", "--data-dir", dir, "--secure-port", "0", "--insecure-port", "0"))
	if !strings.HasPrefix(table.stdout, "CHECK ") || !strings.Contains(table.stdout, "\nfile system ") || strings.Contains(table.stdout, "insecure-port") {
		t.Errorf("karve check: got %q, want a table without the port that is off", table.stdout)
	}
	wantProblems(t, finish(t, command(t, "karve", "check", "--data-dir", dir, "-o", "yaml")), "want table or json")
}

func TestCheckFindsWhatAStartWouldRefuse(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "data") // which the lock makes, 0700
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	engine, err := datastore.OpenEngine(lock, datastore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := engine.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(filepath.Join(dir, datastore.EngineFile), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt([]byte{99}, 63); err != nil { // SQLite's user_version
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	port := taken.Addr().(*net.TCPAddr).Port
	config := write(t, "config.yaml", "data-dir: "+dir+"\netcd-listen: http://127.0.0.1:"+strconv.Itoa(port)+"\nservice-cluster-ip-range: nonsense\n")

	all := findings(t, "--config", config)
	wantFinding(t, all, "configuration", check.Fail, "nonsense")
	wantFinding(t, all, "data directory", check.Fail, "the server of "+dir+" runs already: karve (pid "+strconv.Itoa(os.Getpid())+")")
	wantFinding(t, all, "datastore", check.Fail, "schema 99")
	wantFinding(t, all, "port etcd-listen", check.OK, strconv.Itoa(port)+" is in use, which counts as the running server's")
	wantFinding(t, findings(t, "--config", config, "--data-dir", t.TempDir()), "port etcd-listen", check.Fail, "--etcd-listen "+strconv.Itoa(port)+": the port is in use")
	// A server that makes way is no hindrance, nor are its ports; here it is this test.
	if _, err := f.WriteAt([]byte{1}, 63); err != nil {
		t.Fatal(err)
	}
	replacing := findings(t, "--config", config, "--service-cluster-ip-range", "10.96.0.0/12", "--replaces", dir)
	wantFinding(t, replacing, "configuration", check.OK, "")
	wantFinding(t, replacing, "data directory", check.OK, dir)
	wantFinding(t, replacing, "port etcd-listen", check.OK, "is in use, which counts as the running server's")
	wantFinding(t, findings(t, "--config", config, "--replaces", t.TempDir()), "data directory", check.Fail, "runs already")
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	wantFinding(t, findings(t, "--config", config), "data directory", check.OK, dir)
}

func TestCheckRepeatsNoPassword(t *testing.T) {
	t.Parallel()
	for _, endpoint := range []string{"postgres://me:hunter2@127.0.0.1/x", "http://me:hunter2@127.0.0.1:2379", "http://me:hunter2@:x:y"} {
		for _, args := range [][]string{{"check", "--secure-port", "0", "--insecure-port", "0"}, {"status"}} {
			args = append(args, "--data-dir", t.TempDir(), "--datastore-endpoint", endpoint)
			got := finish(t, command(t, "karve", args...))
			if got.stdout == "" || strings.Contains(got.stdout+got.stderr, "hunter2") {
				t.Errorf("karve %s: got nothing or a password:\n%s%s", args[0], got.stdout, got.stderr)
			}
		}
	}
}
