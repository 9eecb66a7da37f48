package endtoend

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// TestMigrateBadInput has one mistake each, and the words of the only line that tells it.
func TestMigrateBadInput(t *testing.T) {
	t.Parallel()
	dir, config := stored(t), write(t, "config.yaml", "datastore-endpoint: postgres://karve:secret@127.0.0.1:1/x\n")
	prefix := write(t, "prefix.yaml", "kube-apiserver-arg: [v=1, etcd-prefix=/one]\n")
	empty := "sqlite://" + filepath.Join(t.TempDir(), "new")
	for _, tc := range []struct {
		args []string
		env  string
		want string
	}{
		{nil, "", "--to is missing…KARVE_MIGRATE_TO"},
		{[]string{"--to", "nonsense"}, "", "--to: not a URL of a datastore: want sqlite://"},
		{[]string{"--to", "memory://"}, "", "--to: a datastore in memory"},
		{[]string{"--to", "postgres://karve:secret@127.0.0.1:1/x"}, "", "--to: other users can see a password…KARVE_MIGRATE_TO…~/.pgpass"},
		{[]string{"--to", "postgres://127.0.0.1:1/x?password=secret"}, "", "--to: other users can see a password"},
		{[]string{"--to", "mysql://karve:secret@tcp(127.0.0.1:1)/x"}, "", "--to: other users can see a password"},
		{[]string{"--to", empty, "--config", prefix}, "", "--config " + prefix + ": …etcd-prefix=/one: only keys below /registry/"},
		{[]string{"--from", "mysql://karve:secret@tcp(127.0.0.1:1)/x", "--to", empty}, "", "--from: other users can see a password…KARVE_MIGRATE_FROM"},
		{[]string{"--datastore-endpoint", "postgres://karve:secret@127.0.0.1:1/x", "--to", empty}, "", "--datastore-endpoint: other users can see a password…KARVE_DATASTORE_ENDPOINT"},
		{nil, "KARVE_MIGRATE_TO=postgres://karve:secret@127.0.0.1:1/x", "--to postgres://karve@127.0.0.1:1/x: …connection refused"},
		{[]string{"--to", empty}, "KARVE_MIGRATE_FROM=mysql://karve:secret@tcp(127.0.0.1:1)/x", "--from mysql://karve@tcp(127.0.0.1:1)/x: …connection refused"},
		{[]string{"--to", empty, "--config", config}, "", "--datastore-endpoint postgres://karve@127.0.0.1:1/x: …connection refused"},
		{[]string{"--to", "nats://127.0.0.1:1"}, "", "--to nats://…: …run kine…--to http://"},
		{[]string{"--to", "http://127.0.0.1:1"}, "", "--to http://127.0.0.1:1: Error while dialing: dial tcp 127.0.0.1:1: connect: connection refused"},
		{[]string{"--to", "https://127.0.0.1:1", "--to-cafile", "/nowhere/ca"}, "", "--to-cafile…/nowhere/ca"},
		{[]string{"--to", empty, "--to-cafile", config}, "", "--to-cafile " + config + ":…needs no TLS"},
		{[]string{"--to", "https://127.0.0.1:1", "--to-certfile", config, "--to-keyfile", config}, "", "--to https://127.0.0.1:1: --to-cafile, --to-certfile, --to-keyfile: "},
		{[]string{"--to", "sqlite://"}, "", "--to sqlite://" + dir + ": this is the source itself (--data-dir)"},
		{[]string{"--from", "sqlite:///nowhere", "--to", empty}, "", "--from sqlite:///nowhere: /nowhere/mvcc.db does not exist"},
	} {
		cmd := command(t, "karve", append([]string{"datastore", "migrate", "--data-dir", dir}, tc.args...)...)
		if tc.env != "" {
			cmd.Env = append(cmd.Env, tc.env)
		}
		got := finish(t, cmd)
		wantProblems(t, got, tc.want)
		if strings.Contains(got.stderr, "secret") {
			t.Errorf("%v: a password is shown: %s", tc.args, got.stderr)
		}
	}
	if s := readDatastore(t, dir); s.Revision != 61 || s.Keys != 20 || !s.Clean {
		t.Errorf("the source is %+v now", s)
	}
}

// The command line that is printed never starts the old cluster.
func TestNextServer(t *testing.T) {
	t.Parallel()
	from := "sqlite://" + stored(t)
	config := write(t, "config.yaml", "datastore-endpoint: "+from+"\n")
	for _, tc := range []struct {
		args               []string
		config, next, note string
	}{
		{[]string{"--from", from}, os.DevNull, "", ""},
		{[]string{"--datastore-endpoint", from}, os.DevNull, " --datastore-endpoint sqlite://", ""},
		{[]string{"--config", config}, config, " --datastore-endpoint sqlite://", config + " has datastore-endpoint: remove it there"},
	} {
		dir := filepath.Join(t.TempDir(), "new")
		var done struct {
			Next  string
			Notes []string
		}
		text := karve(t, append([]string{"datastore", "migrate", "--data-dir", dir, "--to", "sqlite://", "-o", "json"}, tc.args...)...)
		if err := json.Unmarshal([]byte(text), &done); err != nil {
			t.Fatal(err)
		}
		if want := "karve server --config " + tc.config + " --data-dir " + dir + tc.next; done.Next != want {
			t.Errorf("%v: %s, want %s", tc.args, done.Next, want)
		}
		if notes := strings.Join(done.Notes, "; "); !strings.HasPrefix(notes, tc.note) || (tc.note == "") != (notes == "") {
			t.Errorf("%v: %q, want %q", tc.args, notes, tc.note)
		}
	}
}

// What root makes inside a service's directory is the service's.
func TestMigrationIntoAServicesDirectory(t *testing.T) {
	t.Parallel()
	service := servicesDir(t)
	from := filepath.Join(filepath.Dir(service), "from") // which the service may read
	err := os.CopyFS(from, os.DirFS(stored(t)))
	if err == nil {
		err = filepath.WalkDir(from, func(path string, _ fs.DirEntry, err error) error {
			return errors.Join(err, os.Lchown(path, nobodyID, nobodyID))
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	karve(t, "datastore", "migrate", "--data-dir", t.TempDir(), "--from", "sqlite://"+from, "--to", "sqlite://"+filepath.Join(service, "a", "b"))
	wantAllOf(t, service, "migrate")
}

// A cluster moves to another datastore and back, with the command lines that are printed.
// scripts/external-databases runs this with databases, too.
func TestMigrationOfACluster(t *testing.T) {
	t.Run("sqlite", func(t *testing.T) {
		parallel(t)
		moveCluster(t, "sqlite://"+filepath.Join(t.TempDir(), "other one"), "already has data…move the file away", nil)
	})
	for kind, refusal := range map[string]string{"POSTGRES": "is not empty…drop the table", "MYSQL": "is not empty…drop the table", "ETCD": "it is not empty…etcdctl"} {
		t.Run(kind, func(t *testing.T) {
			name := "KARVE_TEST_" + kind
			endpoint := os.Getenv(name)
			if endpoint == "" {
				t.Skipf("%s is not set: scripts/external-databases starts a database and sets it", name)
			}
			if kind != "ETCD" {
				endpoint += fmt.Sprintf("moved%d", time.Now().UnixNano())
			} else if c, err := clientv3.New(clientv3.Config{Endpoints: []string{endpoint}, Logger: zap.NewNop()}); err != nil {
				t.Fatal(err)
			} else {
				defer c.Close()
				if _, err := c.Delete(within(t, patience), "/registry/", clientv3.WithPrefix()); err != nil {
					t.Fatal(err)
				}
			}
			moveCluster(t, endpoint, refusal, []string{"KARVE_DATASTORE_ENDPOINT=" + endpoint})
		})
	}
}

// moveCluster moves a new cluster to other and back. env is how the server on it is started, if its URL has a
// password.
func moveCluster(t *testing.T, other, refusal string, env []string) {
	dir := t.TempDir()
	migrate := func(env string, args ...string) *exec.Cmd {
		cmd := command(t, "karve", append([]string{"datastore", "migrate", "--data-dir", dir}, args...)...)
		cmd.Env = append(cmd.Env, env+"="+other)
		return cmd
	}
	p := start(t, dir, bare...)
	maps := client(t, p.config()).CoreV1().ConfigMaps("default")
	made, err := maps.Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "moved"}, Data: map[string]string{"a": "b"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	wantProblems(t, finish(t, migrate("KARVE_MIGRATE_TO")),
		fmt.Sprintf("--data-dir sqlite://%s: data directory is in use…process %d: stop the server first", dir, p.cmd.Process.Pid))
	p.stop()

	text := succeed(t, migrate("KARVE_MIGRATE_TO", "-o", "json"))
	var done struct {
		From, To, Next                 string
		Keys, SourceRevision, Revision int64
	}
	if err := json.Unmarshal([]byte(text), &done); err != nil {
		t.Fatal(err)
	}
	if s := readDatastore(t, dir); done.SourceRevision != s.Revision || done.Keys == 0 || done.Revision <= s.Revision || done.From != "sqlite://"+dir {
		t.Errorf("%s, want a higher revision than %d", text, s.Revision)
	}
	if want := `KARVE_DATASTORE_ENDPOINT="$KARVE_MIGRATE_TO" karve server --config /dev/null --data-dir ` + dir; done.Next != want || strings.Contains(text, "w0rd") {
		t.Errorf("next: %s, want %s", done.Next, want)
	}
	if note := "stays as it is. A start without the new datastore-endpoint runs the old cluster"; strings.Contains(text, note) != (env != nil) {
		t.Errorf("%s, want a note on the old datastore only if it is in the data directory", text)
	}
	args := bare
	if env == nil {
		args = append(args, "--datastore-endpoint", other)
	}
	p = launchWith(t, dir, env, args...).waitReady()
	maps = client(t, p.config()).CoreV1().ConfigMaps("default")
	moved, err := maps.Get(t.Context(), "moved", metav1.GetOptions{})
	if err != nil || moved.UID != made.UID || moved.Data["a"] != "b" || number(t, moved.ResourceVersion) <= done.SourceRevision {
		t.Errorf("%+v, %v, want the uid %s and a resourceVersion above %d", moved, err, made.UID, done.SourceRevision)
	}
	// A client that continues has to list again.
	w, err := maps.Watch(within(t, patience), metav1.ListOptions{ResourceVersion: made.ResourceVersion})
	if err == nil {
		event := <-w.ResultChan()
		if w.Stop(); event.Type == watch.Error {
			err = apierrors.FromObject(event.Object)
		}
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("a watch from resourceVersion %s: %v, want that it is too old", made.ResourceVersion, err)
	}
	if _, err := maps.Update(t.Context(), moved, metav1.UpdateOptions{}); err != nil {
		t.Error(err)
	}
	p.stop()

	back := "sqlite://" + filepath.Join(t.TempDir(), "back")
	got := succeed(t, migrate("KARVE_MIGRATE_FROM", "--to", back))
	wantOutput(t, got, "migrated ", " keys (", "every key and value was read again and is the same", "the revision was ",
		"Next:\n  karve server --config /dev/null --data-dir "+dir+" --datastore-endpoint "+back+"\n")
	wantProblems(t, finish(t, migrate("KARVE_MIGRATE_TO", "--from", back)), "--to …"+refusal)
	p = launchWith(t, dir, nil, append(bare, "--datastore-endpoint", back)...).waitReady()
	here, err := client(t, p.config()).CoreV1().ConfigMaps("default").Get(t.Context(), "moved", metav1.GetOptions{})
	if err != nil || here.UID != made.UID || number(t, here.ResourceVersion) <= number(t, moved.ResourceVersion) {
		t.Errorf("%+v, %v, want the uid %s and a resourceVersion above %s", here, err, made.UID, moved.ResourceVersion)
	}
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
