package endtoend

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/karve-k8s/karve/control"
)

// withoutVersions is a state without what a reset changes: resourceVersions.
func withoutVersions(t *testing.T, all objects) objects {
	t.Helper()
	out := objects{}
	for key, text := range all {
		var o map[string]any
		if err := json.Unmarshal([]byte(text), &o); err != nil {
			t.Fatal(err)
		}
		delete(o["metadata"].(map[string]any), "resourceVersion")
		delete(o["metadata"].(map[string]any), "managedFields") // controllers may write a status again
		again, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		out[key] = lastUpdate.ReplaceAllString(string(again), "")
	}
	return out
}

var lastUpdate = regexp.MustCompile(`"lastUpdateTime":"[^"]*",?`)

func configMap(name, value string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: map[string]string{"value": value}}
}

// A snapshot of a running server, and back to it while it runs: all objects are as
// they were, but for their resourceVersions and when controllers wrote their status, and a watch goes on and sees what changed.
func TestSnapshotAndReset(t *testing.T) {
	parallel(t)
	p := start(t, t.TempDir())
	c := client(t, p.plain())
	maps := c.CoreV1().ConfigMaps("default")
	for _, name := range []string{"kept", "changed", "deleted", "again"} {
		if _, err := maps.Create(t.Context(), configMap(name, "then"), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	p.kubectl("create", "namespace", "gone")
	p.kubectl("create", "deployment", "web", "--image=web", "--replicas=3")
	want := withoutVersions(t, settled(t, p))
	wantOutput(t, karve(t, "snapshot", "--data-dir", p.dir), "keys at revision", filepath.Join(p.dir, "snapshot"))
	again := finish(t, command(t, "karve", "snapshot", "--data-dir", p.dir))
	wantProblems(t, again, "--overwrite")

	var before []string
	for _, name := range []string{"changed", "again", "kept"} {
		got, err := maps.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		before = append(before, string(got.UID))
	}
	p.kubectl("delete", "configmap", "deleted", "again")
	p.kubectl("delete", "namespace", "gone")
	p.kubectl("delete", "deployment", "web")
	p.kubectl("create", "namespace", "extra")
	p.kubectl("create", "deployment", "other", "--image=web", "--replicas=2")
	for _, m := range []*corev1.ConfigMap{configMap("again", "now"), configMap("extra", "now")} {
		if _, err := maps.Create(t.Context(), m, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := maps.List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	changed, err := maps.Update(t.Context(), configMap("changed", "now"), metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	watch, err := maps.Watch(t.Context(), metav1.ListOptions{ResourceVersion: changed.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Stop()
	settled(t, p)

	refused := finish(t, command(t, "karve", "reset", "--data-dir", p.dir))
	wantProblems(t, refused, "--yes")
	dry := karve(t, "reset", "--data-dir", p.dir, "--dry-run")
	wantOutput(t, dry, "/registry/configmaps/default/extra", "/registry/namespaces/gone")
	if got, err := maps.Get(t.Context(), "extra", metav1.GetOptions{}); err != nil {
		t.Errorf("after a dry run %v: %v", got, err)
	}
	var done control.Result
	if err := json.Unmarshal([]byte(karve(t, "reset", "--data-dir", p.dir, "--yes", "-o", "json")), &done); err != nil {
		t.Fatal(err)
	}
	if done.Missing == 0 || done.Changed < 2 || done.Surplus == 0 {
		t.Errorf("%+v: want objects of each kind", done)
	}

	// The watch saw it: "again" is another object, so it went and came.
	var events []string
	for len(events) < 5 {
		select {
		case e := <-watch.ResultChan():
			m, ok := e.Object.(*corev1.ConfigMap)
			if !ok {
				t.Fatalf("the watch ended with %v", e)
			}
			events = append(events, fmt.Sprintln(e.Type, m.Name, m.Data["value"]))
		case <-time.After(patience):
			t.Fatalf("the watch has seen %q only", events)
		}
	}
	for _, event := range []string{"MODIFIED changed then\n", "DELETED extra now\n", "ADDED deleted then\n", "DELETED again now\n", "ADDED again then\n"} {
		if !slices.Contains(events, event) {
			t.Errorf("the watch has seen %q, and not %q", events, event)
		}
	}
	for i, name := range []string{"changed", "again", "kept"} {
		got, err := maps.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || string(got.UID) != before[i] || got.Data["value"] != "then" {
			t.Errorf("%s is %v with uid %s, want %s: %v", name, got.Data, got.UID, before[i], err)
		}
		for _, old := range list.Items {
			if old.Name == name && name == "kept" && old.ResourceVersion != got.ResourceVersion {
				t.Errorf("%s has not changed, and another resourceVersion", name)
			}
		}
	}
	got := withoutVersions(t, settled(t, p))
	for _, key := range append(different(want, got), different(got, want)...) {
		t.Errorf("%s differs:\n%s\nwant\n%s", key, got[key], want[key])
	}

	// What was there before the reset is a snapshot, too.
	kept, err := filepath.Glob(filepath.Join(p.dir, "snapshot.before-reset-*"))
	if err != nil || len(kept) != 1 {
		t.Fatalf("%q is kept, want one file: %v", kept, err)
	}
	karve(t, "reset", "--data-dir", p.dir, "--yes", "--no-backup", kept[0])
	if _, err := maps.Get(t.Context(), "extra", metav1.GetOptions{}); err != nil {
		t.Errorf("back to what was before the reset: %v", err)
	}
	if kept, _ = filepath.Glob(filepath.Join(p.dir, "snapshot.before-reset-*")); len(kept) != 1 {
		t.Errorf("%q is kept with --no-backup", kept)
	}
	first, err := os.ReadFile(kept[0])
	if err != nil {
		t.Fatal(err)
	}
	p.stop()

	// The same without a server.
	future, mine := "20990101T000000Z", p.dir+"/snapshot.before-reset-.mine"
	for _, at := range []string{"20000101T000000Z", "20000102T000000Z", "20000103T000000Z", "20000104T000000Z", future, ".mine"} {
		if err := os.WriteFile(p.dir+"/snapshot.before-reset-"+at, first, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	broken := p.dir + "/snapshot.before-reset-20000101T000000Z.2"
	if err := os.WriteFile(broken, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	said := karve(t, "reset", "--data-dir", p.dir, "--yes")
	wantOutput(t, said, "deleted", "before-reset", "removed "+p.dir+"/snapshot.before-reset-"+future, "removed "+p.dir+"/snapshot.before-reset-20000101T000000Z,")
	states, _ := filepath.Glob(filepath.Join(p.dir, "snapshot.before-reset-*"))
	if !slices.Contains(states, mine) || !slices.Contains(states, broken) || len(states) != 2+5 || strings.Count(said, "removed ") != 2 {
		t.Errorf("%q is kept, want five, and what no reset has made: %s", states, said)
	}
	if again, err := os.ReadFile(kept[0]); err != nil || !bytes.Equal(first, again) {
		t.Errorf("the second reset wrote over the state before the first: %v", err)
	}
	wantOutput(t, karve(t, "reset", "--data-dir", p.dir), "0 objects to restore, 0 to change back, 0 to delete")
	wantOutput(t, karve(t, "datastore", "verify", "--data-dir", p.dir), "is sound")
}

// Clusters of a snapshot, of a running server's directory and of one in memory: the
// objects are there, its clients are let in, and what one of them does the others do
// not see.
func TestForks(t *testing.T) {
	long(t)
	parallel(t)
	base := start(t, t.TempDir(), bare...)
	maps := client(t, base.plain()).CoreV1().ConfigMaps("default")
	if _, err := maps.Create(t.Context(), configMap("one", "base"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "file")
	karve(t, "snapshot", "--data-dir", base.dir, file)
	credentials := base.config().TLSClientConfig
	var forks []*process
	for _, how := range [][]string{
		{"--fork-from", file},
		{"--fork-from", base.dir},
		{"--fork-from", file, "--datastore-endpoint", "memory://"},
	} {
		forks = append(forks, launch(t, t.TempDir(), append(how, bare...)...))
	}
	for i, fork := range forks {
		fork.waitReady()
		config := &rest.Config{Host: fork.url, TLSClientConfig: credentials}
		c := client(t, config)
		got, err := c.CoreV1().ConfigMaps("default").Get(t.Context(), "one", metav1.GetOptions{})
		if err != nil {
			t.Fatalf("fork %d, by a client of the first cluster: %v", i, err)
		}
		got.Data["value"] = fmt.Sprint(i)
		if _, err := c.CoreV1().ConfigMaps("default").Update(t.Context(), got, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
		// Upstream takes the address of the server that was there out, and puts its own
		// in a moment later.
		fork.poll("a fork says where it is", func() error {
			slices, err := c.DiscoveryV1().EndpointSlices("default").Get(t.Context(), "kubernetes", metav1.GetOptions{})
			if err == nil && (len(slices.Ports) != 1 || !strings.HasSuffix(fork.url, fmt.Sprint(":", *slices.Ports[0].Port))) {
				err = fmt.Errorf("fork %d, at %s, says that it is at %v", i, fork.url, slices.Ports)
			}
			return err
		})
	}
	for i, p := range append(forks, base) {
		got, err := client(t, p.plain()).CoreV1().ConfigMaps("default").Get(t.Context(), "one", metav1.GetOptions{})
		want := fmt.Sprint(i)
		if p == base {
			want = "base"
		}
		if err != nil || got.Data["value"] != want {
			t.Errorf("cluster %d has %v, want %s: %v", i, got.Data, want, err)
		}
	}
	// A fork goes back to what it was made of, that in memory too, and of that a
	// snapshot can be made, by nobody but the server. cluster-info names the fork, and stays.
	for i, fork := range forks {
		wantOutput(t, karve(t, "reset", "--data-dir", fork.dir, "--yes"), "1 changed back")
		got, err := client(t, fork.plain()).CoreV1().ConfigMaps("default").Get(t.Context(), "one", metav1.GetOptions{})
		if err != nil || got.Data["value"] != "base" {
			t.Errorf("fork %d has %v after a reset: %v", i, got.Data, err)
		}
	}
	wantOutput(t, karve(t, "snapshot", "--data-dir", forks[2].dir, "--overwrite"), "keys at revision")

	// A service is started with the same options again, in the datastore's directory and
	// in memory; what it has written since is there.
	c := client(t, forks[0].plain()).CoreV1().ConfigMaps("default")
	if _, err := c.Create(t.Context(), configMap("since", "0"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	forks[0].stop()
	forks[2].stop()
	config := filepath.Join(t.TempDir(), "config.yaml")
	if err := os.WriteFile(config, []byte("fork-from: "+file+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	restarted := start(t, forks[0].dir, append([]string{"--config", config}, bare...)...)
	if _, err := client(t, restarted.plain()).CoreV1().ConfigMaps("default").Get(t.Context(), "since", metav1.GetOptions{}); err != nil {
		t.Errorf("what a fork has written is gone after a restart: %v", err)
	}
	if want := "is a fork of " + file; !strings.Contains(restarted.stderr.String(), want) {
		t.Errorf("the log of the restart: got %q, want %q in it", restarted.stderr.String(), want)
	}
	restarted.stop()
	start(t, forks[2].dir, append([]string{"--fork-from", file, "--datastore-endpoint", "memory://"}, bare...)...).stop()
}

// Resets at once do not take each other's names.
func TestResetsAtOnce(t *testing.T) {
	long(t)
	parallel(t)
	p := start(t, t.TempDir(), bare...)
	karve(t, "snapshot", "--data-dir", p.dir)
	karve(t, "kubectl", "--data-dir", p.dir, "create", "namespace", "more")
	const resets = 4
	all := make([]*exec.Cmd, resets)
	said := make([]strings.Builder, resets)
	for i := range all {
		all[i] = command(t, "karve", "reset", "--yes", "--data-dir", p.dir)
		all[i].Stdout, all[i].Stderr = &said[i], &said[i]
		if err := all[i].Start(); err != nil {
			t.Fatal(err)
		}
	}
	for i, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("%v: %s", err, &said[i])
		}
	}
}

func TestSnapshotProblems(t *testing.T) {
	long(t)
	parallel(t)
	one, other := start(t, t.TempDir(), bare...), start(t, t.TempDir(), bare...)
	karve(t, "snapshot", "--data-dir", one.dir)
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"of another cluster":    {[]string{"reset", "--data-dir", other.dir, "--yes", filepath.Join(one.dir, "snapshot")}, []string{"the backup is of another cluster…--fork-from"}},
		"none yet":              {[]string{"reset", "--data-dir", other.dir, "--yes"}, []string{"make a backup with karve snapshot"}},
		"no snapshot":           {[]string{"reset", "--data-dir", one.dir, "--yes", one.kubeconfig}, []string{"not a backup of a cluster"}},
		"no data directory":     {[]string{"snapshot", "--data-dir", filepath.Join(one.dir, "none")}, []string{"no server has been started in " + filepath.Join(one.dir, "none")}},
		"two files":             {[]string{"snapshot", "--data-dir", one.dir, "a", "b"}, []string{"takes one FILE"}},
		"no source":             {[]string{"server", "--data-dir", filepath.Join(one.dir, "new"), "--secure-port", "0", "--insecure-port", "0", "--fork-from", "/no/such"}, []string{"--fork-from: stat /no/such"}},
		"an empty source":       {[]string{"server", "--data-dir", filepath.Join(one.dir, "new"), "--secure-port", "0", "--insecure-port", "0", "--fork-from", t.TempDir()}, []string{"--fork-from:…karve backup create --data-dir"}},
		"a datastore of others": {[]string{"server", "--data-dir", filepath.Join(one.dir, "new"), "--secure-port", "0", "--insecure-port", "0", "--fork-from", one.dir, "--datastore-endpoint", "http://127.0.0.1:1"}, []string{"--fork-from: --datastore-endpoint http://127.0.0.1:1 is an etcd"}},
	} {
		t.Run(name, func(t *testing.T) {
			wantProblems(t, finish(t, command(t, "karve", test.args...)), test.want...)
		})
	}
	if _, err := control.New(t.TempDir()).Reset(t.Context(), nil); !errors.Is(err, control.ErrMissing) {
		t.Errorf("without a server: %v, want %v", err, control.ErrMissing)
	}
}
