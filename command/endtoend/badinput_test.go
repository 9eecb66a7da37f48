package endtoend

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// serverWith runs `karve server` with a configuration that it must refuse.
func serverWith(t *testing.T, env []string, args ...string) outcome {
	t.Helper()
	cmd := command(t, "karve", append([]string{"server"}, args...)...)
	cmd.Env = append(cmd.Env, "KARVE_DATA_DIR="+t.TempDir(), "KARVE_SECURE_PORT=0", "KARVE_INSECURE_PORT=-1")
	cmd.Env = append(cmd.Env, env...)
	return finish(t, cmd)
}

// TestBadInput has one mistake, or several, in the options of the server. Each
// must be told in a line that has these words, and nothing else; values that are refused are told all at once. Package server tests those in the
// server's configuration.
func TestBadInput(t *testing.T) {
	t.Parallel()
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	_, port, _ := net.SplitHostPort(busy.Addr().String())
	notDir := write(t, "file", "")

	for _, tc := range []struct {
		name string
		args []string
		want []string // … stands for anything
	}{
		{"second CIDRs overlap", []string{"--cluster-cidr=10.1.0.0/16,fd00::/48", "--service-cluster-ip-range=10.96.0.0/12,fd00::/112"},
			[]string{"--cluster-cidr fd00::/48…--service-cluster-ip-range fd00::/112"}},
		{"port no number", []string{"--secure-port=https"}, []string{`--secure-port "https"`}},
		{"port in use", []string{"--bind-address=127.0.0.1", "--secure-port=" + port}, []string{"--secure-port " + port + "…in use"}},
		{"insecure port in use", []string{"--insecure-port=" + port}, []string{"--insecure-port " + port + "…in use"}},
		{"memory limit", []string{"--memory-limit=lots"}, []string{`--memory-limit "lots"…200Mi`}},
		{"memory limit too small", []string{"--memory-limit=1Mi"}, []string{`--memory-limit "1Mi"…96Mi`}},
		{"removed option", []string{"--approve-kubelet-serving"}, []string{"--approve-kubelet-serving…kubectl certificate approve"}},
		{"address of another machine", []string{"--bind-address=203.0.113.77"}, []string{"203.0.113.77"}},
		{"feature gate's value", []string{"--feature-gates=AllAlpha=perhaps"}, []string{"feature-gates…AllAlpha=perhaps"}},
		{"controllers", []string{"--disable-controllers=replicasetcontroller,nonesuch"}, []string{"replicasetcontroller…did you mean", "nonesuch"}},
		{"audit policy", []string{"--audit-policy-file=/nowhere/audit.yaml"}, []string{"--audit-policy-file…/nowhere/audit.yaml"}},
		{"audit preset", []string{"--audit-preset=most"}, []string{"--audit-preset…most…full, metadata, writes"}},
		{"audit preset beside a policy", []string{"--audit-preset=full", "--audit-policy-file=" + notDir}, []string{"--audit-preset full and --audit-policy-file exclude each other"}},
		{"encryption", []string{"--encryption-provider-config=/nowhere/encryption.yaml"}, []string{"--encryption-provider-config…/nowhere/encryption.yaml"}},
		{"SNI certificate", []string{"--tls-sni-cert-key=/nowhere/a,/nowhere/b"}, []string{"--tls-sni-cert-key…/nowhere/a", "--tls-sni-cert-key…/nowhere/b"}},
		{"serving certificate", []string{"--tls-cert-file=/nowhere/crt", "--tls-private-key-file=/nowhere/key"},
			[]string{"--tls-cert-file…/nowhere/crt", "--tls-private-key-file…/nowhere/key"}},
		{"data directory in a file", []string{"--data-dir=" + filepath.Join(notDir, "data")}, []string{"--data-dir…" + notDir}},
		{"data directory in /proc", []string{"--data-dir=/proc/karve"}, []string{"--data-dir…/proc"}},
		{"log level", []string{"--log-level=loud"}, []string{"--log-level…loud…debug"}},
		{"log format", []string{"--log-format=xml"}, []string{"--log-format…xml…json"}},
		{"mode", []string{"--write-kubeconfig-mode=rw"}, []string{"--write-kubeconfig-mode…rw"}},
		{"settling before it is up", []string{"--settle-after=-1s"}, []string{`--settle-after -1s…0 or more`}},
		{"time", []string{"--start-timeout=soon"}, []string{`--start-timeout "soon"`}},
		{"option", []string{"--service-clustr-ip-range=10.0.0.0/24"}, []string{"--service-clustr-ip-range…did you mean --service-cluster-ip-range?"}},
		{"option of upstream's", []string{"--etcd-compaction-interval=1m"}, []string{"--etcd-compaction-interval; pass it…by --kube-apiserver-arg etcd-compaction-interval=…"}},
		{"option of two of upstream's", []string{"--leader-elect"}, []string{"--leader-elect…by --kube-controller-manager-arg or --kube-scheduler-arg leader-elect="}},
		{"option that Karve sets", []string{"--etcd-servers=http://127.0.0.1:2379"}, []string{"--etcd-servers; use --datastore-endpoint"}},
		{"option of another program", []string{"--disable-agent"}, []string{"there is no option --disable-agent; see karve server --help"}},
		{"option in another option", []string{"--kube-apiserver-arg=cloud-provider=x"}, []string{`--kube-apiserver-arg: kube-apiserver has no flag "cloud-provider"`}},
		{"upstream's without a name", []string{"--kube-apiserver-arg=event-ttl=1h", "--kube-apiserver-arg=watch-cache-sizes=pods"},
			[]string{"--kube-apiserver-arg: watch-cache-sizes: …pods: want RESOURCE#SIZE, such as pods#500"}},
		{"a file that upstream reads early", []string{"--authorization-config=/nowhere/a"}, []string{"--authorization-config…/nowhere/a"}},
		{"API version", []string{"--runtime-config=batch/v2alpha1=true"}, []string{"--kube-apiserver-arg: runtime-config: …batch/v2alpha1"}},
		{"a number at the end", []string{"--cluster-cidr=nope", "--insecure-port"}, []string{"--insecure-port needs a number"}},
		{"not expanded", []string{"--data-dir=~/karve"}, []string{`--data-dir "~/karve"…whole path`}},
		{"variable of a shell", []string{"--audit-log-path=$HOME/audit.log"}, []string{`--audit-log-path "$HOME/audit.log"…whole path`}},
		{"argument", []string{"now"}, []string{`"now"`}},
		{"configuration file", []string{"--config=/nowhere.yaml"}, []string{"--config…/nowhere.yaml"}},
		{"a few Service addresses", []string{"--service-cluster-ip-range=10.0.0.0/30"}, []string{"--service-cluster-ip-range 10.0.0.0/30…8 addresses…/29"}},
		{"a datastore, its token and a gate", []string{"--durability=foo", "--cluster-token-file=/nowhere/t", "--feature-gates=Foo=true", "--new-authorities=x"},
			[]string{`--durability "foo"`, "--cluster-token-file…/nowhere/t", "--feature-gates…Foo…karve server --help --all", "--new-authorities x"}},
		{"six at once",
			[]string{"--cluster-cidr=nope", "--insecure-port=70000", "--audit-policy-file=/nowhere/a", "--encryption-provider-config=/nowhere/e",
				"--kube-apiserver-arg=evnt-ttl=1h", "--kube-scheduler-arg=nonsense=1"},
			[]string{"--cluster-cidr…nope", "--insecure-port 70000", "--audit-policy-file…/nowhere/a", "--encryption-provider-config…/nowhere/e",
				"--kube-apiserver-arg…evnt-ttl", "--kube-scheduler-arg…nonsense"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := serverWith(t, nil, tc.args...)
			wantProblems(t, got, tc.want...)
			if strings.Contains(got.stderr, "secret") {
				t.Errorf("a password is shown: %s", got.stderr)
			}
		})
	}
}

// TestUnusableDataDir is run as nobody by root, who may read and write everywhere.
func TestUnusableDataDir(t *testing.T) {
	t.Parallel()
	for mode, want := range map[os.FileMode]string{0o555: "permission denied): make it writable", 0o000: "permission denied"} {
		dir := publicDir(t)
		if err := os.Chmod(dir, mode); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Chmod(dir, 0o700) })
		cmd := command(t, "karve", "server", "--data-dir", dir, "--secure-port=0", "--insecure-port=-1")
		if os.Geteuid() == 0 {
			nobody(t, cmd)
		}
		wantProblems(t, finish(t, cmd), "--data-dir…"+dir+"…"+want)
	}
}

// TestConfigFile has mistakes in the file, and in a variable.
func TestConfigFile(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"unknown keys", "secure-prt: 1\nquite-something-else: 2\n", []string{`line 1…"secure-prt"…did you mean "secure-port"?`, `line 2…"quite-something-else"`}},
		{"wrong values", "start-timeout: soon\nlog-level: loud\ncluster-cidr: nope\n", []string{`line 1…start-timeout…"soon"`, "--log-level…loud", "--cluster-cidr…nope"}},
		{"null", "cluster-cidr: null\nkube-apiserver-arg:\nlog-level: 'null'\nno-controllers:\ntls-san: [a, null]\n",
			[]string{`--log-level="null"`, "line 4: no-controllers: want true or false", "line 5: tls-san…empty"}},
		{"paths for a shell", "data-dir: ~\nbackup-dir: ~/karve\nmanifests-dir: ${HOME}/karve\nstart-timeout: soon\n",
			[]string{"line 1: data-dir: ~ is null", `line 2: backup-dir: "~/karve"`, `line 3: manifests-dir: "${HOME}/karve"`, "line 4…start-timeout"}},
		{"anchors", "tls-san: &names [a]\nsocket-group: *names\n", []string{"line 2: socket-group…*names…anchors are not supported"}},
		{"option that Karve sets", "etcd-servers: x\n", []string{`line 1…"etcd-servers"; use --datastore-endpoint`}},
		{"twice", "log-level: info\nlog-level: debug\n", []string{"line 2…log-level…twice"}},
		{"names another", "config: other.yaml\n", []string{"line 1…configuration file cannot name another"}},
		{"a map", "tls-san: {a: b}\n", []string{"line 1…tls-san"}},
		{"a list", "- log-level\n", []string{"want name: value"}},
		{"no YAML", "a: [b\n", []string{"yaml"}},
		{"one document", "# only\n---\nlog-level: loud\n...\n--- # end\n", []string{"--log-level…loud"}},
		{"two documents", "log-level: loud\n---\nsecure-port: 1\n", []string{"line 2: a second document"}},
		{"a second document that is no map", "---\n---\nanonymous\n", []string{"line 2: a second document"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := write(t, "config.yaml", tc.text)
			for i, want := range tc.want {
				if strings.HasPrefix(want, "line ") || want == "want name: value" || want == "yaml" {
					tc.want[i] = "--config " + path + "…" + want
				}
			}
			wantProblems(t, serverWith(t, nil, "--config", path), tc.want...)
		})
	}
	t.Run("variable", func(t *testing.T) {
		wantProblems(t, serverWith(t, []string{"KARVE_SECURE_PORT=https"}), `KARVE_SECURE_PORT="https"`)
	})
	t.Run("variables", func(t *testing.T) {
		wantProblems(t, serverWith(t, []string{"KARVE_TLSSAN=x", "KARVE_APPROVE_KUBELET_SERVING=true", "KARVE_CLUSTER_CIDR=nope"}),
			"KARVE_TLSSAN", "KARVE_APPROVE_KUBELET_SERVING…kubectl certificate approve")
		wantProblems(t, serverWith(t, []string{"KARVE_CLUSTER_CIDR=nope", "GOMEMLIMIT=50MiB"}),
			"--cluster-cidr nope", `--memory-limit "auto": GOMEMLIMIT=50MiB: want at least 96Mi`)
	})
	t.Run("a variable has one value", func(t *testing.T) {
		wantProblems(t, serverWith(t, []string{"KARVE_KUBE_APISERVER_ARG=evnt-ttl=1h,goaway-chance=x goaway-chance=y"}), `has no flag "evnt-ttl"`)
		wantProblems(t, serverWith(t, []string{"KARVE_KUBE_APISERVER_ARG=event-ttl=1h,goaway-chance=x"}), "event-ttl=1h,goaway-chance=x")
	})
}

// TestPrecedence shows by a value that is refused where it was taken from.
func TestPrecedence(t *testing.T) {
	t.Parallel()
	path := write(t, "config.yaml", "cluster-cidr: of-file\n")
	const variable = "KARVE_CLUSTER_CIDR=of-variable"
	for _, tc := range []struct {
		name string
		env  []string
		args []string
		want string
	}{
		{"file", nil, []string{"--config", path}, "of-file"},
		{"file by variable", []string{"KARVE_CONFIG=" + path}, nil, "of-file"},
		{"variable over file", []string{variable}, []string{"--config", path}, "of-variable"},
		{"option over file", nil, []string{"--config", path, "--cluster-cidr", "of-option"}, "of-option"},
		{"option over variable and file", []string{variable}, []string{"--config", path, "--cluster-cidr", "of-option"}, "of-option"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			wantProblems(t, serverWith(t, tc.env, tc.args...), "--cluster-cidr "+tc.want)
		})
	}
	t.Run("lists", func(t *testing.T) { // one replaces the other as a whole
		path := write(t, "config.yaml", "disable-controllers: [of-file-1, of-file-2]\nkube-apiserver-arg: [event-ttl=of-file]\n")
		wantProblems(t, serverWith(t, nil, "--config", path), "of-file-1", "of-file-2", "event-ttl=of-file")
		wantProblems(t, serverWith(t, []string{"KARVE_DISABLE_CONTROLLERS=of-variable"}, "--config", path, "--kube-apiserver-arg=event-ttl=of-option"),
			"of-variable", "event-ttl=of-option")
	})
}

// TestConfigFileStarts starts a server with everything from the file.
func TestConfigFileStarts(t *testing.T) {
	parallel(t)
	dir := t.TempDir()
	other := filepath.Join(t.TempDir(), "copy.kubeconfig")
	path := write(t, "config.yaml", fmt.Sprintf("no-controllers: true\ndisable-scheduler: true\nwrite-kubeconfig: %s\nwrite-kubeconfig-mode: 0640\n", other))
	p := start(t, dir, "--config", path)
	info, err := os.Stat(other)
	if err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("the copy of the kubeconfig: got %v, %v; want mode 0640", info, err)
	}
	p.kubeconfig = other
	if got := p.kubectl("get", "--raw", "/readyz?verbose"); strings.Contains(got, "]controllers ") || strings.Contains(got, "]scheduler ") {
		t.Errorf("/readyz: got %s, want neither controllers nor scheduler", got)
	}
}

// TestDataDirInUse names who has it.
func TestDataDirInUse(t *testing.T) {
	long(t)
	parallel(t)
	p := start(t, t.TempDir(), bare...)
	wantProblems(t, serverWith(t, nil, "--data-dir", p.dir), fmt.Sprintf("--data-dir…%s…process %d", p.dir, p.cmd.Process.Pid))
	p.kubectl("get", "namespaces") // it has done no harm, and its kubeconfig is there
}

// TestUnreachableDatastore waits and says for what; a stop need not wait.
func TestUnreachableDatastore(t *testing.T) {
	for endpoint, why := range map[string]string{
		"http://user:secret@127.0.0.1:1":          "connection refused",
		"postgres://user:secret@127.0.0.1:1/db":   "connection refused",
		"mysql://user:secret@tcp(127.0.0.1:1)/db": "connection refused",
	} {
		t.Run(endpoint[:4], func(t *testing.T) {
			parallel(t)
			p := launch(t, t.TempDir(), "--datastore-endpoint="+endpoint)
			p.poll("a line that says what it waits for", func() error {
				for line := range strings.Lines(p.stderr.String()) {
					if strings.Contains(line, "waiting for the datastore") && strings.Contains(line, "127.0.0.1:1") && strings.Contains(line, why) {
						return nil
					}
				}
				return fmt.Errorf("got %q", p.stderr.String())
			})
			if strings.HasPrefix(endpoint, "http:") { // the same for all
				p.poll("a line about the progress of the start", func() error {
					if !strings.Contains(p.stderr.String(), "the datastore has been starting for ") {
						return fmt.Errorf("got %q", p.stderr.String())
					}
					return nil
				})
			}
			p.signal(syscall.SIGTERM)
			p.wantCleanEnd(10 * time.Second)
			if got := p.stderr.String(); strings.Contains(got, "secret") || strings.Contains(got, "cancel") {
				t.Errorf("the log has a password, or a complaint that it was stopped: %s", got)
			}
			if got := p.stdout.String(); got != "" {
				t.Errorf("standard output: got %q, want nothing", got)
			}
		})
	}
}

// Without HOME there is no usual data directory, and the working directory is none. Other mistakes are found all the same.
func TestNoHome(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"server"}, {"datastore", "restore", "/nowhere"}} { // others use a server of this user that runs
		cmd := command(t, "karve", args...)
		if os.Geteuid() == 0 { // root needs no HOME
			nobody(t, cmd)
		}
		cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool { return strings.HasPrefix(v, "HOME=") })
		wantProblems(t, finish(t, cmd), "--data-dir has no default, because $HOME is not defined: name a directory")
	}
}

// A directory for temporary files that is missing is one that the user has named.
func TestNoTempDir(t *testing.T) {
	t.Parallel()
	dir, backup := t.TempDir(), filepath.Join(t.TempDir(), "backup")
	start(t, dir, bare...).stop()
	karve(t, "backup", "create", "--data-dir", dir, backup)
	for _, args := range [][]string{{"run", "--", "true"}, {"backup", "verify", backup}} {
		cmd := command(t, "karve", args...)
		cmd.Env = append(cmd.Env, "TMPDIR=/nowhere")
		wantProblems(t, finish(t, cmd), "/nowhere…TMPDIR")
	}
}
