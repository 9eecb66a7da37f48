package endtoend

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/command/install/check"
	"github.com/karve-k8s/karve/datastore/directory"
)

const nobodyID = 65534

// servicesDir is a data directory of a service whose user is nobody, in a directory that
// everybody may enter.
func servicesDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can run commands on another user's directory")
	}
	above, err := os.MkdirTemp("", "karve-service-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(above) })
	dir := filepath.Join(above, "data")
	if err := errors.Join(os.Chmod(above, 0o711), os.Mkdir(dir, 0o700), os.Chown(dir, nobodyID, nobodyID)); err != nil {
		t.Fatal(err)
	}
	return dir
}

// service starts a server as nobody and waits until it is ready.
func service(t *testing.T, dir string, env ...string) *process {
	t.Helper()
	p := &process{t: t, dir: dir,
		cmd: command(t, "karve", append([]string{"server", "--data-dir", dir, "--secure-port", "0", "--insecure-port", "-1"}, bare...)...)}
	nobody(t, p.cmd)
	p.cmd.Env = append(p.cmd.Env, env...)
	p.begin()
	t.Cleanup(func() {
		if p.running() {
			p.kill()
		}
		if t.Failed() {
			t.Logf("the server's log:\n%s", p.stderr.tail())
		}
	})
	return p.waitReady()
}

// wantAllOf fails for every file below dir that belongs to somebody else.
func wantAllOf(t *testing.T, dir, after string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err == nil && !ownedBy(info, nobodyID) {
			t.Errorf("after %s: %s is not the service's", after, path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// Root's commands on the data directory of a service leave nothing there that the service
// could not open, whether it runs or not.
func TestRootsCommandsLeaveFilesToTheService(t *testing.T) {
	long(t)
	parallel(t)
	dir := servicesDir(t)
	roots := t.TempDir() // closed to everybody else
	services := filepath.Join(filepath.Dir(dir), "services")
	if err := errors.Join(os.Mkdir(services, 0o700), os.Chown(services, nobodyID, nobodyID)); err != nil {
		t.Fatal(err)
	}
	backup, database := filepath.Join(roots, "backup"), filepath.Join(roots, "backup.db")
	all := func(state string) {
		for _, words := range []string{
			"datastore stats", "datastore verify", "certs renew", "status",
			"backup create " + filepath.Join(services, state+".backup"), "backup create --overwrite " + backup, "certs list",
			"datastore backup --overwrite " + database, "snapshot --overwrite", "reset --yes", "reset --yes " + backup,
		} {
			args := strings.Fields(words)
			n := 1
			if len(args) > 1 && !strings.HasPrefix(args[1], "-") && !filepath.IsAbs(args[1]) {
				n = 2
			}
			args = append(append(append([]string{}, args[:n]...), "--data-dir", dir), args[n:]...)
			got := finish(t, command(t, "karve", args...))
			if got.code != 0 && !(args[0] == "status" && got.code == exitStopped) {
				t.Errorf("%s, %s: code %d: %s%s", words, state, got.code, got.stdout, got.stderr)
			}
			wantAllOf(t, dir, words+", "+state)
			wantAllOf(t, services, words+", "+state)
		}
		for _, file := range []string{backup, database} {
			if info, err := os.Stat(file); err != nil || !ownedBy(info, 0) || info.Mode().Perm() != 0o600 {
				t.Errorf("root's file in root's directory: %v, %v; want root's, mode 0600", info, err)
			}
		}
	}
	p := service(t, dir)
	all("running")
	p.stop()
	all("stopped")
	for _, file := range []string{backup, database} { // which nobody may not read
		karve(t, "datastore", "restore", "--data-dir", dir, file)
		wantAllOf(t, dir, "restore")
	}
	if left, _ := filepath.Glob(filepath.Join(filepath.Dir(dir), ".karve-*")); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	service(t, dir).stop()

	// In empty directories, too.
	for _, what := range []string{"restore", "import"} {
		dir, file := servicesDir(t), database
		if what == "import" {
			file = stateOfK3s(t, roots)
		}
		got := finish(t, command(t, "karve", "datastore", what, "--data-dir", dir, file))
		var env []string
		if match := newAuthorities.FindStringSubmatch(got.stderr); match != nil { // the keys are not in the backup
			env = append(env, "KARVE_NEW_AUTHORITIES="+match[1])
		} else if got.code != 0 {
			t.Fatalf("%s: %+v", what, got)
		}
		wantAllOf(t, dir, what+" into an empty directory")
		service(t, dir, env...).stop()
	}
}

// A server of root's would leave its files to itself only.
func TestRootStartsNoServerOfAService(t *testing.T) {
	parallel(t)
	dir := servicesDir(t)
	got := finish(t, command(t, "karve", "server", "--data-dir", dir, "--secure-port", "0", "--insecure-port", "-1"))
	for _, want := range []string{"--data-dir: the directory belongs to another user: " + dir, "uid 65534", "setpriv --reuid 65534", "chown -hR 0:0 " + dir} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("standard error: got %q, want %q in it", got.stderr, want)
		}
	}
	if got.code != 1 {
		t.Errorf("code %d, want 1", got.code)
	}
	wantAllOf(t, dir, "karve server by root")
	// It is what install.sh does, as root, before it installs.
	if got := finish(t, command(t, "karve", "check", "--data-dir", dir, "--secure-port", "0", "--insecure-port", "-1")); strings.Contains(got.stdout, "another user") {
		t.Errorf("karve check: %s", got.stdout)
	}
}

// What an earlier release has left to root, the service says with the remedy.
func TestServiceNamesWhatRootLeft(t *testing.T) {
	long(t)
	parallel(t)
	dir := servicesDir(t)
	service(t, dir).stop()
	key := filepath.Join(dir, "certs", "admin.crt")
	if err := os.Chown(key, 0, 0); err != nil {
		t.Fatal(err)
	}
	cmd := command(t, "karve", append([]string{"server", "--data-dir", dir, "--secure-port", "0", "--insecure-port", "-1"}, bare...)...)
	nobody(t, cmd)
	got := finish(t, cmd)
	if want := key + " belongs to root (uid 0), but the directory to "; got.code != 1 || !strings.Contains(got.stderr, want) || !strings.Contains(got.stderr, "chown -hR 65534:65534 "+dir) {
		t.Errorf("code %d, standard error %q, want %q and the remedy", got.code, got.stderr, want)
	}
}

// A restore that was killed leaves a copy of the backup; the next command removes it, but not
// that of one that still works.
func TestCommandsRemoveStages(t *testing.T) {
	parallel(t)
	dir := servicesDir(t)
	above := filepath.Dir(dir)
	used, err := directory.NewTempDir(above)
	if err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"datastore stats", "datastore restore FILE"} {
		left := filepath.Join(above, ".karve-123.partial")
		secret := filepath.Join(left, "backup.db")
		file := filepath.Join(t.TempDir(), "backup.db")
		if err := errors.Join(os.Mkdir(left, 0o711), os.WriteFile(filepath.Join(left, ".karve-temporary"), nil, 0o600),
			os.WriteFile(secret, []byte("secret"), 0o600), os.WriteFile(file, []byte("no database"), 0o600)); err != nil {
			t.Fatal(err)
		}
		args := strings.Fields(strings.Replace(words, "FILE", file, 1))
		args = append(append(args[:2:2], "--data-dir", dir), args[2:]...)
		if got := finish(t, command(t, "karve", args...)); got.code == 0 {
			t.Errorf("%s: no error without a database", words)
		}
		if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("after %s, the copy is still there: %v", words, err)
		}
		if _, err := os.Lstat(used.Dir()); err != nil {
			t.Errorf("after %s: %v", words, err)
		}
	}
	if err := used.Remove(); err != nil {
		t.Error(err)
	}
}

// Root's check reads files as the service will, and the commands for the cluster's secret leave it files that it can
// read.
func TestRootsCheckOfAServicesFiles(t *testing.T) {
	long(t)
	parallel(t)
	dir := servicesDir(t)
	place := filepath.Join(filepath.Dir(dir), "etc")
	token, next := filepath.Join(place, "cluster-token"), filepath.Join(place, "next")
	karve(t, "cluster-token", "create", "--data-dir", dir, token) // makes the directory
	p := service(t, dir, "KARVE_SSH_USER=nodes", "KARVE_ETCD_LISTEN=http://127.0.0.1:0", "KARVE_CLUSTER_TOKEN_FILE="+token)
	karve(t, "cluster-token", "create", "--data-dir", t.TempDir(), next) // root's
	karve(t, "cluster-token", "rotate", "--data-dir", dir, "--cluster-token-file", token, "--new-cluster-token-file", next)
	if info, err := os.Stat(next); err != nil || !ownedBy(info, nobodyID) {
		t.Errorf("the new secret is not the service's: %v", err)
	}
	p.stop()
	options := []string{"--data-dir", dir, "--ssh-user", "nodes", "--etcd-listen", "http://127.0.0.1:0", "--cluster-token-file"}
	wantFinding(t, findings(t, append(options, next)...), "configuration", check.OK, "")
	roots := filepath.Join(t.TempDir(), "roots") // closed to everybody else
	karve(t, "cluster-token", "create", "--data-dir", t.TempDir(), roots)
	wantFinding(t, findings(t, append(options, roots)...), "configuration", check.Fail, "permission denied")
}

// What the service's user makes of files in the data directory leads root's commands to none of root's files.
func TestRootFollowsNothingOfAService(t *testing.T) {
	long(t)
	parallel(t)
	dir := servicesDir(t)
	service(t, dir).stop()
	roots := t.TempDir() // closed to everybody else
	secret := filepath.Join(roots, "secret")
	if err := os.WriteFile(secret, []byte("the text of a file of root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	leak := filepath.Join(dir, "certs", "leak")
	if err := errors.Join(os.Symlink(secret, leak), os.Lchown(leak, nobodyID, nobodyID)); err != nil {
		t.Fatal(err)
	}
	for _, words := range []string{"snapshot", "backup create"} {
		to := filepath.Join(roots, "out")
		args := append(strings.Fields(words), "--data-dir", dir)
		got := finish(t, command(t, "karve", append(args, to)...))
		if text, err := os.ReadFile(to); err != nil || strings.Contains(string(text), "of root's") {
			t.Errorf("%s: %v, %s", words, err, got.stderr)
		}
		os.Remove(to)
		link := filepath.Join(dir, "..", "link")
		if err := errors.Join(os.Symlink(secret, link), os.Lchown(link, nobodyID, nobodyID)); err != nil {
			t.Fatal(err)
		}
		if got := finish(t, command(t, "karve", append(args, "--overwrite", link)...)); got.code == 0 || !strings.Contains(got.stderr, "is not followed") {
			t.Errorf("%s to the service's link: %+v", words, got)
		}
		os.Remove(link)
	}
	if text, err := os.ReadFile(secret); err != nil || string(text) != "the text of a file of root's" {
		t.Errorf("root's file: %q, %v", text, err)
	}
	kubeconfig := filepath.Join(dir, "admin.kubeconfig")
	text, err := os.ReadFile(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	changed := strings.Replace(string(text), "    server: ", "    proxy-url: http://127.0.0.1:1\n    server: ", 1)
	if err := os.WriteFile(kubeconfig, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	into := filepath.Join(roots, "config")
	for _, more := range [][]string{{"--into", into}, nil, {"--user", "jane"}} {
		got := finish(t, command(t, "karve", append([]string{"kubeconfig", "--data-dir", dir}, more...)...))
		if text, err := os.ReadFile(into); err != nil || got.code != 0 || strings.Contains(got.stdout+string(text), "proxy-url") {
			t.Errorf("kubeconfig %q: %+v, %v", more, got, err)
		}
	}
}
