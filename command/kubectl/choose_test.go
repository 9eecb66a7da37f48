package kubectl

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/rest"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/karve-k8s/karve/certs"
	"github.com/karve-k8s/karve/command/status/servers"
	"github.com/karve-k8s/karve/datastore/directory"
)

func TestCutDataDir(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		args, dir, rest string
		refused         bool
	}{
		{"get ns", "", "get ns", false},
		{"", "", "", false},
		{"--data-dir D get ns", "D", "get ns", false},
		{"--data-dir=D get ns", "D", "get ns", false},
		{"get ns --data-dir D", "D", "get ns", false},
		{"get --data-dir=D ns", "D", "get ns", false},
		{"exec p -- --data-dir D", "", "exec p -- --data-dir D", false},
		{"__complete --data-dir D get ns", "D", "__complete get ns", false},
		{"__completeNoDesc --data-dir=D get ns", "D", "__completeNoDesc get ns", false},
		{"__complete get --data-dir D", "D", "__complete get", false},
		{"__complete", "", "__complete", false},
		{"--data-dir", "", "", true},
		{"--data-dir= get ns", "", "", true},
		{"--data-dir -- get ns", "", "", true},
	} {
		dir, rest, err := cutDataDir(strings.Fields(test.args))
		if dir != test.dir || strings.Join(rest, " ") != test.rest || (err != nil) != test.refused {
			t.Errorf("%q: got %q, %q, %v", test.args, dir, rest, err)
		}
	}
}

// dirWith is a data directory with a kubeconfig, in which a server runs or not.
func dirWith(t *testing.T, running bool) string {
	t.Helper()
	dir := t.TempDir()
	if err := errors.Join(os.Mkdir(filepath.Join(dir, "certs"), 0o700), os.WriteFile(filepath.Join(dir, servers.KubeconfigName), nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if running {
		lock, err := directory.Acquire(dir)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { lock.Close() })
	}
	return dir
}

func TestChoose(t *testing.T) {
	t.Parallel()
	empty, stopped, runs, another := t.TempDir(), dirWith(t, false), dirWith(t, true), dirWith(t, true)
	users := filepath.Join(stopped, servers.KubeconfigName)
	for _, test := range []struct {
		name    string
		machine machine
		dir     string
		order   Order
		want    string // the data directory, empty for what kubectl would use
		missing string // in the error, if nothing answers
		sure    bool
	}{
		{"nothing", machine{usualDirs: []string{empty}}, "", OursFirst, empty, "no server has been started in " + empty + ": start one with karve server, or name", false},
		{"the usual directory", machine{usualDirs: []string{runs}}, "", OursFirst, runs, "the server in " + runs + " is not ready: karve wait", false},
		{"the second usual directory, in which one runs", machine{usualDirs: []string{stopped, runs}}, "", OursFirst, runs, "", false},
		{"a usual directory whose server has stopped", machine{usualDirs: []string{stopped}}, "", OursFirst, os.DevNull, "no server runs in " + stopped, true},
		{"a copy of a data directory", machine{usualDirs: []string{runs}}, stopped, OursFirst, os.DevNull, "no server runs in " + stopped, true},
		{"the only server", machine{usualDirs: []string{stopped}, own: runningIn(another)}, "", OursFirst, another, "", false},
		{"two servers", machine{usualDirs: []string{stopped}, own: runningIn(runs, another)}, "", OursFirst, os.DevNull, "2 servers of this user run", true},
		{"two servers, one of them usual", machine{usualDirs: []string{runs}, own: runningIn(runs, another)}, "", OursFirst, runs, "", false},
		{"an option", machine{usualDirs: []string{runs}, kubeconfigVariable: "x"}, another, OursFirst, another, "", false},
		{"an option with nothing there", machine{usualDirs: []string{runs}}, empty, OursFirst, empty, "no server has been started in " + empty, true},
		{"a variable", machine{usualDirs: []string{runs}, dataDirVariable: another}, "", OursFirst, another, "", false},
		{"a variable with nothing there", machine{usualDirs: []string{runs}, dataDirVariable: empty}, "", OursFirst, empty, "no server has been started in " + empty, true},
		{"KUBECONFIG", machine{usualDirs: []string{runs}, dataDirVariable: another, kubeconfigVariable: "x"}, "", OursFirst, "", "", false},
		{"kubectl with a kubeconfig of the user", machine{usualDirs: []string{runs}, usersKubeconfig: users}, "", UsersFirst, "", "", false},
		{"kubectl without", machine{usualDirs: []string{runs}}, "", UsersFirst, runs, "", false},
		{"karve kubectl with a kubeconfig of the user", machine{usualDirs: []string{runs}, usersKubeconfig: users}, "", OursFirst, runs, "", false},
		{"only a kubeconfig of the user", machine{usualDirs: []string{empty}, usersKubeconfig: users}, "", OursFirst, "", "", false},
		{"in a Pod", machine{usualDirs: []string{empty}, inCluster: true}, "", OursFirst, "", "", false},
	} {
		if test.machine.own == nil {
			test.machine.own = runningIn()
		}
		test.machine.checkListed = anyPath
		want := test.want
		if want != "" && want != os.DevNull {
			want = filepath.Join(want, servers.KubeconfigName)
		}
		got := test.machine.choose(test.dir, test.order)
		if got.kubeconfig != want || got.sure != test.sure {
			t.Errorf("%s: got %+v, want %s", test.name, got, want)
		}
		if test.missing != "" && (got.missing == nil || !strings.Contains(got.missing.Error(), test.missing)) {
			t.Errorf("%s: got %v, want %q", test.name, got.missing, test.missing)
		}
	}
}

func runningIn(dirs ...string) func(...string) []string {
	return func(...string) []string {
		var all []servers.Server
		for _, dir := range dirs {
			all = append(all, servers.Server{DataDir: dir, PID: os.Getpid()})
		}
		return servers.Owned(all)
	}
}

func anyPath(string) error { return nil }

func TestCheck(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answers := &rest.Config{Host: "https://" + l.Addr().String()}
	dir, m := dirWith(t, true), machine{checkListed: anyPath}
	flags := func() *genericclioptions.ConfigFlags { return genericclioptions.NewConfigFlags(true) }
	if err := m.in(dir).check(flags(), answers); err != nil {
		t.Errorf("a server that answers: got %v", err)
	}
	if err := m.in(t.TempDir()).check(flags(), answers); err == nil {
		t.Error("a directory without a kubeconfig, and another server at kubectl's default address: got no error")
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := m.in(dir).check(flags(), answers); err == nil || !strings.Contains(err.Error(), "the server in "+dir+" is not ready") {
		t.Errorf("no server: got %v", err)
	}
	for _, set := range []func(*genericclioptions.ConfigFlags){
		func(f *genericclioptions.ConfigFlags) { *f.APIServer = "https://elsewhere" },
		func(f *genericclioptions.ConfigFlags) { *f.KubeConfig = "x" },
		func(f *genericclioptions.ConfigFlags) { *f.Context = "x" },
		func(f *genericclioptions.ConfigFlags) { *f.ClusterName = "x" },
	} {
		f := flags()
		set(f)
		if err := m.in(dir).check(f, answers); err != nil {
			t.Errorf("an option names another cluster: got %v", err)
		}
	}
}

// Root does not use the kubeconfig of another user, which can name a program to start.
func TestOwnServersOnly(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can make files of another user")
	}
	mine, foreign := dirWith(t, true), dirWith(t, true)
	if err := os.Chown(filepath.Join(foreign, servers.KubeconfigName), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if got := runningIn(foreign, mine)(); !slices.Equal(got, []string{mine}) {
		t.Errorf("got %v, want %s", got, mine)
	}
}

// A service's user can write the kubeconfig in the service's directory. Root uses it only as a
// server writes it, unless root names the directory.
func TestChooseForRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root uses the directories of services")
	}
	const stranger = 54321 // no user of the machine
	const program = `{"apiVersion":"v1","kind":"Config","users":[{"name":"k","user":{"exec":{"apiVersion":"client.authentication.k8s.io/v1","command":"touch","interactiveMode":"Never"}}}]}`
	for _, running := range []bool{true, false} {
		dir := dirWith(t, running)
		if err := os.Chown(dir, stranger, stranger); err != nil {
			t.Fatal(err)
		}
		m := machine{usualDirs: []string{dir}, own: runningIn(dir), checkListed: anyPath}
		path := filepath.Join(dir, servers.KubeconfigName)
		if err := os.WriteFile(path, []byte(program), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := m.choose("", OursFirst); got.kubeconfig != os.DevNull || !got.sure || !errors.Is(got.missing, servers.ErrUnlike) {
			t.Errorf("a program: got %+v, want ErrUnlike", got)
		}
		if got := m.choose(dir, OursFirst); (got.kubeconfig == path) != running || got.foreign {
			t.Errorf("a program in a directory that was named: got %+v, running: %v", got, running)
		}
		if err := errors.Join(os.Remove(path), certs.WriteKubeconfig(path, certs.Kubeconfig{Server: "http://127.0.0.1:1"})); err != nil {
			t.Fatal(err)
		}
		got := m.choose("", OursFirst)
		if (got.kubeconfig == path) != running || !got.foreign {
			t.Errorf("a kubeconfig as a server writes it: got %+v, running: %v", got, running)
		}
		changed := &rest.Config{ExecProvider: &clientcmdapi.ExecConfig{Command: "touch"}}
		if err := got.check(genericclioptions.NewConfigFlags(true), changed); !errors.Is(err, servers.ErrUnlike) {
			t.Errorf("a program that was added since: got %v, want ErrUnlike", err)
		}
	}
}
