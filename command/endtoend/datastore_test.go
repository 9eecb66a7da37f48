package endtoend

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/datastore"
	"github.com/karve-k8s/karve/datastore/backup"
	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/datastore/kineimport"
	"github.com/karve-k8s/karve/server/snapshots"
)

// restoredRevision is the least revision after a restore of what stored makes.
const restoredRevision = 61 + backup.RevisionMargin

// stored makes a data directory with an engine's file of 20 keys, 60 revisions.
func stored(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	e, done := engine(t, dir)
	for i := range 60 {
		if _, err := e.Put(t.Context(), datastore.PutRequest{Key: fmt.Sprint("/registry/", i%20), Value: fmt.Append(nil, "value ", i)}); err != nil {
			t.Fatal(err)
		}
	}
	done()
	return dir
}

func engine(t *testing.T, dir string) (e *datastore.Engine, done func()) {
	t.Helper()
	lock, err := directory.Acquire(dir)
	if err != nil {
		t.Fatal(err)
	}
	e, err = datastore.OpenEngine(lock, datastore.Options{BallastBytes: -1})
	if err != nil {
		t.Fatal(err)
	}
	return e, func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		lock.Close()
	}
}

// readDatastore answers what `karve datastore stats` says.
func readDatastore(t *testing.T, dir string) (s backup.Stats) {
	t.Helper()
	if err := json.Unmarshal([]byte(karve(t, "datastore", "stats", "--data-dir", dir, "-o", "json")), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func wantOutput(t *testing.T, got string, want ...string) {
	t.Helper()
	for _, w := range want {
		if !strings.Contains(got, w) {
			t.Errorf("got %q, want %q in it", got, w)
		}
	}
}

func TestDatastoreStopped(t *testing.T) {
	t.Parallel()
	dir := stored(t)
	config := write(t, "config.yaml", "data-dir: "+dir+"\n")
	backup := filepath.Join(t.TempDir(), "backup.db")

	if s := readDatastore(t, dir); s.Revision != 61 || s.Keys != 20 || s.Rows != 60 || !s.Clean {
		t.Errorf("stats: got %+v, want revision 61, 20 keys, 60 rows, clean", s)
	}
	wantOutput(t, karve(t, "datastore", "stats", "--config", config), "revision            61\n", "keys                20\n")
	wantOutput(t, karve(t, "datastore", "verify", "--config", config), "is sound: 60 rows, 20 keys, revision 61\n")
	wantOutput(t, karve(t, "datastore", "verify", "--data-dir", dir, "-o", "json"), `"ok": true`)
	wantOutput(t, karve(t, "datastore", "backup", "--data-dir", dir, backup), backup+": 20 keys at revision 61")
	if info, err := os.Stat(backup); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("backup: %v, %v, want mode 0600", info, err)
	}

	wantOutput(t, karve(t, "datastore", "restore", "--data-dir", dir, backup), "restored 20 keys to ", ".before-restore-")
	if s := readDatastore(t, dir); s.Revision < restoredRevision || s.CompactRevision != s.Revision {
		t.Errorf("stats after restore: got %+v, want revision and compaction %d or more", s, restoredRevision)
	}
	at := filepath.Base(dir)
	for _, args := range []string{"stats --data-dir " + at, "verify --data-dir " + at, "backup --data-dir " + at + " b", "restore --data-dir " + at + " b", "restore --data-dir new b"} {
		cmd := command(t, "karve", append([]string{"datastore"}, strings.Fields(args)...)...)
		cmd.Dir = filepath.Dir(dir) // names are relative to where the command runs
		succeed(t, cmd)
	}
	empty := filepath.Join(t.TempDir(), "new")
	karve(t, "datastore", "restore", "--data-dir", empty, backup)
	e, done := engine(t, empty)
	defer done()
	if r, err := e.Range(t.Context(), datastore.RangeRequest{Key: "/registry/7"}); err != nil || len(r.KVs) != 1 || string(r.KVs[0].Value) != "value 47" {
		t.Errorf("restored value: %+v, %v, want value 47", r, err)
	}
}

// The test is the process of the server here.
func TestDatastoreLive(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "karve-live-") // short: there is a socket in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	e, done := engine(t, dir)
	defer done()
	if _, err := e.Put(t.Context(), datastore.PutRequest{Key: "/registry/live", Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}
	for _, args := range []string{"stats", "verify"} {
		cmd := command(t, "karve", "datastore", args)
		cmd.Env = append(cmd.Env, "KARVE_DATA_DIR="+dir)
		wantProblems(t, finish(t, cmd), fmt.Sprintf("mvcc.db is open in process %d (…karve.sock", os.Getpid()))
	}
	asked, err := net.Listen("unix", filepath.Join(dir, control.Socket))
	if err != nil {
		t.Fatal(err)
	}
	answers := &http.Server{Handler: snapshots.DatastoreHandler(e)}
	go answers.Serve(asked)
	defer answers.Close()
	if s := readDatastore(t, dir); s.Revision != 2 || s.Clean || s.WALBytes == 0 {
		t.Errorf("stats: got %+v, want revision 2 and a log", s)
	}
	wantOutput(t, karve(t, "datastore", "verify", "--data-dir", dir), "is sound: 1 rows, 1 keys, revision 2\n")
	file := filepath.Join(t.TempDir(), "backup.db")
	if _, err := e.Backup(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	self := fmt.Sprintf("data directory is in use: %s is held by process %d: stop the server first", dir, os.Getpid())
	wantProblems(t, finish(t, command(t, "karve", "datastore", "restore", "--data-dir", dir, file)), self)
	wantProblems(t, finish(t, command(t, "karve", "datastore", "import", "--data-dir", dir, file)), self)
}

func TestDatastoreSalvage(t *testing.T) {
	t.Parallel()
	dir := stored(t)
	path := filepath.Join(dir, datastore.EngineFile)
	wantProblems(t, finish(t, command(t, "karve", "datastore", "salvage", "--data-dir", dir)), "nothing is wrong with the database: start the server")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text = bytes.Replace(text, []byte("value 47"), []byte("value 74"), 1)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	got := karve(t, "datastore", "salvage", "--data-dir", dir)
	wantOutput(t, got, `row 3211264 (revision 49) of key "/registry/7" has a bad checksum`, "saved 20 keys to "+path, "the damaged database is kept as "+path+".before-salvage-")
	wantOutput(t, karve(t, "datastore", "verify", "--data-dir", dir), "is sound: 20 rows, 20 keys")
	e, done := engine(t, dir)
	defer done()
	if r, err := e.Range(t.Context(), datastore.RangeRequest{Key: "/registry/7"}); err != nil || len(r.KVs) != 1 || string(r.KVs[0].Value) != "value 27" {
		t.Errorf("the key with the damaged row: %+v, %v, want the version before", r, err)
	}
}

// With a --datastore-endpoint, the default --data-dir may be that of another server.
func TestDatastoreOfAnotherServer(t *testing.T) {
	long(t)
	t.Parallel()
	dir, err := os.MkdirTemp("", "karve-other-") // short: there is a socket in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	e, done := engine(t, dir)
	defer done()
	asked, err := net.Listen("unix", filepath.Join(dir, control.Socket))
	if err != nil {
		t.Fatal(err)
	}
	answers := &http.Server{Handler: snapshots.DatastoreHandler(e)}
	go answers.Serve(asked)
	defer answers.Close()
	if _, err := e.Put(t.Context(), datastore.PutRequest{Key: "/registry/a", Value: []byte("v")}); err != nil {
		t.Fatal(err)
	}

	other := t.TempDir() // another server uses it
	_, done = engine(t, other)
	defer done()
	backup := filepath.Join(t.TempDir(), "backup.db")
	if err := os.WriteFile(backup, []byte("the last one"), 0o600); err != nil {
		t.Fatal(err)
	}
	want := "the server of " + dir + " uses another datastore, " + filepath.Join(dir, datastore.EngineFile) +
		"; name the --data-dir of the server that uses " + filepath.Join(other, datastore.EngineFile) + " with --data-dir"
	for _, args := range [][]string{{"datastore", "stats"}, {"datastore", "verify"}, {"backup", "create", "--overwrite"}, {"status"}} {
		args = append(args, "--data-dir", dir, "--datastore-endpoint", "sqlite://"+other)
		if slices.Contains(args, "backup") {
			args = append(args, backup)
		}
		wantProblems(t, finish(t, command(t, "karve", args...)), want)
	}
	if text, err := os.ReadFile(backup); err != nil || string(text) != "the last one" {
		t.Errorf("the file of the backup: %q, %v, want it untouched", text, err)
	}
	link := filepath.Join(t.TempDir(), "link") // another name of the same directory
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	wantOutput(t, karve(t, "datastore", "stats", "--data-dir", dir, "--datastore-endpoint", "sqlite://"+link), "revision            2\n")
}

// stateOfK3s makes the state.db of a k3s with one key. It stays open until the end of the
// test, its rows in the log.
func stateOfK3s(t *testing.T, dir string) string {
	t.Helper()
	path := filepath.Join(dir, kineimport.FileName)
	// The driver comes with package datastore.
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	for _, statement := range []string{
		`CREATE TABLE kine (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT, created INTEGER, deleted INTEGER,
			create_revision INTEGER, prev_revision INTEGER, lease INTEGER, value BLOB, old_value BLOB)`,
		`INSERT INTO kine(id, name, created, deleted, create_revision, prev_revision, lease, value)
			VALUES (1, 'compact_rev_key', 1, 0, 0, 0, 0, ''), (2000, '/registry/somewhere/a', 1, 0, 0, 0, 0, 'value')`,
	} {
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestDatastoreImport(t *testing.T) {
	t.Parallel()
	k3s := t.TempDir()
	file, dir := stateOfK3s(t, k3s), filepath.Join(t.TempDir(), "new")
	wantOutput(t, karve(t, "datastore", "import", "--data-dir", dir, file), "imported 1 keys at revision 2000 from "+file)
	if s := readDatastore(t, dir); s.Revision != 2000 || s.CompactRevision != 2000 || s.Keys != 1 {
		t.Errorf("stats: got %+v, want 1 key, revision 2000", s)
	}
	wantProblems(t, finish(t, command(t, "karve", "datastore", "import", "--data-dir", dir, file)),
		"data directory already has data: "+filepath.Join(dir, datastore.EngineFile))
	wantProblems(t, finish(t, command(t, "karve", "datastore", "stats", "--data-dir", k3s)), file+" is a database of kine")
}

func TestDatastoreProblems(t *testing.T) {
	long(t)
	t.Parallel()
	empty := t.TempDir()
	file := filepath.Join(empty, datastore.EngineFile)
	for _, args := range []string{"stats", "verify", "backup X"} {
		words := strings.Fields(args)
		words = append([]string{"datastore", words[0], "--data-dir", empty}, words[1:]...)
		wantProblems(t, finish(t, command(t, "karve", words...)), file+" does not exist: no server has been started with this datastore…--data-dir")
	}
	for _, tc := range []struct{ args, want string }{
		{"datastore restore --data-dir " + empty + "/new /nowhere/b", "restore /nowhere/b: file does not exist"},
		{"datastore import --data-dir " + empty + "/new /nowhere/b", "import /nowhere/b: file does not exist"},
		{"datastore backup --data-dir " + empty, "takes one FILE, got 0"},
		{"datastore backup --data-dir " + empty + " a b --overwrite", "takes one FILE, got 2"},
		{"datastore stats --data-dir " + empty + " a", `takes options only, got "a"`},
		{"datastore stats --config /nowhere", "--config: open /nowhere"},
	} {
		wantProblems(t, finish(t, command(t, "karve", strings.Fields(tc.args)...)), tc.want)
	}
	if left, err := os.ReadDir(empty); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v (%v)", left, err)
	}

	dir := stored(t)
	path := filepath.Join(dir, datastore.EngineFile)
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	damaged := strings.Replace(string(text), "value 47", "value 48", 1)
	if err := os.WriteFile(path, []byte(damaged), 0o600); err != nil {
		t.Fatal(err)
	}
	wantProblems(t, finish(t, command(t, "karve", "datastore", "verify", "--data-dir", dir)),
		path+"…(revision 49) has a bad checksum", path+" is damaged: stop the server, then restore a backup (karve datastore restore FILE) or save what can be read (karve datastore salvage)")
	got := finish(t, command(t, "karve", "datastore", "verify", "--data-dir", dir, "-o", "json"))
	var v backup.Verification
	if err := json.Unmarshal([]byte(got.stdout), &v); err != nil || got.code != 1 || v.OK || len(v.Problems) != 1 {
		t.Errorf("verify -o json: code %d, %+v (%v), want 1 and one problem", got.code, v, err)
	}
	wantProblems(t, finish(t, command(t, "karve", "datastore", "backup", "--data-dir", dir, filepath.Join(t.TempDir(), "b"))), path+"…has a bad checksum")
	wantProblems(t, finish(t, command(t, "karve", "datastore", "restore", "--data-dir", empty, path)), path+"…has a bad checksum")
}

// The commands find the datastore where --datastore-endpoint says, in each of the
// ways to say it, and send you elsewhere with one that is not the built-in.
func TestDatastoreElsewhere(t *testing.T) {
	long(t)
	t.Parallel()
	dir, data := stored(t), t.TempDir()
	endpoint := "sqlite://" + dir + "?durability=relaxed"
	want := []string{"revision            61\n"}
	wantOutput(t, karve(t, "datastore", "stats", "--data-dir", data, "--datastore-endpoint", endpoint), want...)
	config := write(t, "config.yaml", "data-dir: "+data+"\ndatastore-endpoint: "+endpoint+"\n")
	wantOutput(t, karve(t, "datastore", "stats", "--config", config), want...)
	cmd := command(t, "karve", "datastore", "stats", "--data-dir", data)
	cmd.Env = append(cmd.Environ(), "KARVE_DATASTORE_ENDPOINT="+endpoint)
	wantOutput(t, succeed(t, cmd), want...)

	backup := filepath.Join(t.TempDir(), "backup.db")
	for _, args := range [][]string{{"verify"}, {"backup", backup}, {"restore", backup}} {
		karve(t, append([]string{"datastore", args[0], "--config", config}, args[1:]...)...)
	}
	if s := readDatastore(t, dir); s.Revision < restoredRevision {
		t.Errorf("after restore: %+v, want revision %d", s, restoredRevision)
	}
	if left, err := os.ReadDir(data); err != nil || len(left) > 0 {
		t.Errorf("in the data directory: %v (%v), want nothing", left, err)
	}
	for endpoint, want := range map[string]string{
		"postgres://u:s3cret@h/db":     "postgres://u@h/db is a database of yours: use pg_dump",
		"mysql://u:s3cret@tcp(h:1)/db": "mysql://u@tcp(h:1)/db is a database of yours: use mysqldump",
		"https://u:s3cret@h:2379":      "https://u:xxxxx@h:2379 is an etcd: use etcdctl",
		"memory://":                    "keeps nothing on the disk",
	} {
		for _, args := range [][]string{{"stats"}, {"verify"}, {"backup", "B"}, {"restore", backup}, {"import", backup}} {
			got := finish(t, command(t, "karve", append([]string{"datastore", args[0], "--data-dir", data, "--datastore-endpoint", endpoint}, args[1:]...)...))
			wantProblems(t, got, want)
			if strings.Contains(got.stderr, "s3cret") {
				t.Errorf("a password in %q", got.stderr)
			}
		}
	}
}
