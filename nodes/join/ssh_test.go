package join

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/karve-k8s/karve/nodes/tunnels"
)

// Two keys that ssh-keygen made, and threw away.
const (
	keyA    = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGf2C5Y2pZ9m8bqRj1Vw7bU9m4yFZk0v9S4dQF0yJ2aB"
	keyB    = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKf2C5Y2pZ9m8bqRj1Vw7bU9m4yFZk0v9S4dQF0yJ2aB"
	offered = "restrict,port-forwarding " + keyA + " karve@one"
	another = "restrict,port-forwarding " + keyB + " karve@two"
)

// withSSH lets the server offer lines, and gives the machine the user karve-ssh.
func withSSH(t *testing.T, m *testMachine, s *testServer, lines ...string) {
	t.Helper()
	m.programs["sshd"] = true
	s.offer = map[string]string{tunnels.OfferUser: "karve-ssh", tunnels.OfferLines: strings.Join(lines, "\n") + "\n"}
	if err := os.MkdirAll(m.path("/home/karve-ssh"), 0o755); err != nil {
		t.Fatal(err)
	}
	m.answers["getent passwd karve-ssh"] = func([]string) (string, error) {
		return fmt.Sprintf("karve-ssh:x:%d:%d::/home/karve-ssh:/usr/sbin/nologin\n", os.Getuid(), os.Getgid()), nil
	}
	m.answers["getent passwd other"] = noSuchUser
}

// noSuchUser answers as getent does.
func noSuchUser([]string) (string, error) { return "", exec.Command("sh", "-c", "exit 2").Run() }

func (m *testMachine) mode(t *testing.T, path string) os.FileMode {
	t.Helper()
	info, err := os.Lstat(m.path(path))
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode().Perm()
}

const karvesKeys = "/home/karve-ssh/" + authorizedKeys

// What a join adds to authorized_keys, and that a removal leaves the rest as it was, whatever was there.
func TestJoinLetsTheServerLogIn(t *testing.T) {
	t.Parallel()
	mine := "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOf2C5Y2pZ9m8bqRj1Vw7bU9m4yFZk0v9S4dQF0yJ2aB me@laptop\n"
	for _, tc := range []struct {
		name, before, want string
		mode               os.FileMode // before; 0: there is no such file
		after              string      // if it differs from before
		meanwhile          func(*testing.T, *testMachine)
	}{
		{name: "there is nothing", want: offered + "\n" + another + "\n"},
		{name: "somebody's own keys", before: mine, want: mine + offered + "\n" + another + "\n", mode: 0o644},
		{name: "no newline at the end", before: strings.TrimSuffix(mine, "\n"), want: mine + offered + "\n" + another + "\n", mode: 0o600},
		{name: "an empty file", want: offered + "\n" + another + "\n", mode: 0o600},
		{name: "one is there with another comment", before: "restrict,port-forwarding " + keyA + " by hand\n", want: "restrict,port-forwarding " + keyA + " by hand\n" + another + "\n", mode: 0o600},
		{name: "both are there", before: offered + "\n" + another + "\n", want: offered + "\n" + another + "\n", mode: 0o600},
		{name: "one that is commented out", before: "#" + offered + "\n", want: "#" + offered + "\n" + offered + "\n" + another + "\n", mode: 0o600},
		{name: "more since", want: offered + "\n" + another + "\n", after: mine, meanwhile: func(t *testing.T, m *testMachine) {
			text, err := os.ReadFile(m.path(karvesKeys))
			if err != nil {
				t.Fatal(err)
			}
			m.write(t, karvesKeys, mine+string(text))
		}},
		{name: "changed since", before: mine, mode: 0o600, want: mine + offered + "\n" + another + "\n", after: mine + "from=\"192.0.2.1\"," + offered + "\n", meanwhile: func(t *testing.T, m *testMachine) {
			m.write(t, karvesKeys, mine+"from=\"192.0.2.1\","+offered+"\n"+another+"\n")
		}},
		{name: "more since a line without a newline", before: strings.TrimSuffix(mine, "\n"), mode: 0o600, want: mine + offered + "\n" + another + "\n", after: mine + mine, meanwhile: func(t *testing.T, m *testMachine) {
			m.write(t, karvesKeys, mine+offered+"\n"+another+"\n"+mine)
		}},
		{name: "removed since", want: offered + "\n" + another + "\n", meanwhile: func(_ *testing.T, m *testMachine) { os.Remove(m.path(karvesKeys)) }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, "127.0.0.1")
			m := newMachine(t)
			o := optionsFor(s)
			o.Kubelet, o.SSHUser = withKubelet(t, m, s), "karve-ssh"
			withSSH(t, m, s, offered, "# a comment", another)
			if tc.mode != 0 {
				m.write(t, karvesKeys, tc.before)
				if err := errors.Join(os.Chmod(m.path(karvesKeys), tc.mode), os.Chmod(m.path("/home/karve-ssh/.ssh"), 0o750)); err != nil {
					t.Fatal(err)
				}
			}
			before := m.tree(t)
			var warnings []string
			o.Warn = func(format string, args ...any) { warnings = append(warnings, fmt.Sprintf(format, args...)) }
			if err := Join(t.Context(), m.Machine, o); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(m.path(karvesKeys))
			if err != nil || string(text) != tc.want {
				t.Errorf("got %q, %v, want %q", text, err, tc.want)
			}
			file, dir := tc.mode, os.FileMode(0o750)
			if tc.mode == 0 {
				file, dir = 0o600, 0o700
			}
			if got := m.mode(t, karvesKeys); got != file {
				t.Errorf("%s has mode %o, want %o", karvesKeys, got, file)
			}
			if got := m.mode(t, "/home/karve-ssh/.ssh"); got != dir {
				t.Errorf("its directory has mode %o, want %o", got, dir)
			}
			// The same line again changes nothing.
			if err := Join(t.Context(), m.Machine, o); err != nil {
				t.Error(err)
			}
			if len(warnings) != 0 {
				t.Errorf("got the warnings %q", warnings)
			}
			if tc.meanwhile != nil {
				tc.meanwhile(t, m)
			}
			if err := Remove(t.Context(), m.Machine, t.Logf); err != nil {
				t.Fatal(err)
			}
			if tc.after != "" {
				before[karvesKeys] = tc.after
			}
			sameTree(t, before, m.tree(t))
			if there := m.exists("/home/karve-ssh/.ssh"); there != (tc.mode != 0 || tc.after != "") {
				t.Errorf("after the removal, that there is a directory of SSH is %t", there)
			}
			if left, _ := filepath.Glob(m.path("/home/karve-ssh/.ssh/.karve*")); len(left) > 0 {
				t.Errorf("left over: %v", left)
			}
		})
	}
}

// An account that sshd would not accept a key for, and keys that are none, are found before anything changes.
func TestJoinRefusesAnSSHUser(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name   string
		change func(*testing.T, *testMachine, *testServer, *Options)
		want   []string
	}{
		{"no name", func(_ *testing.T, _ *testMachine, _ *testServer, o *Options) { o.SSHUser = "-a b" }, []string{`--ssh-user "-a b"`, "not the name of a user"}},
		{"no such user", func(_ *testing.T, _ *testMachine, s *testServer, o *Options) {
			o.SSHUser, s.offer[tunnels.OfferUser] = "other", "other"
		}, []string{"--ssh-user other", "no such user", "useradd --create-home --shell /usr/sbin/nologin other"}},
		{"a number", func(_ *testing.T, m *testMachine, _ *testServer, o *Options) {
			o.SSHUser, m.answers["getent passwd 1000"] = "1000", m.answers["getent passwd karve-ssh"]
		}, []string{"--ssh-user 1000", "no such user"}},
		{"no home directory", func(_ *testing.T, m *testMachine, _ *testServer, _ *Options) { os.RemoveAll(m.path("/home/karve-ssh")) }, []string{"--ssh-user karve-ssh", `"/home/karve-ssh"`, "make it"}},
		{"the server's account", func(t *testing.T, m *testMachine, _ *testServer, _ *Options) {
			m.write(t, "/home/karve-ssh/karve-data", "")
		}, []string{"--ssh-user karve-ssh", "this is the account of the Karve server", "/home/karve-ssh/karve-data", "make another user for SSH"}},
		{"a directory that everybody may write to", func(t *testing.T, m *testMachine, _ *testServer, _ *Options) {
			m.write(t, karvesKeys, "")
			if err := os.Chmod(m.path("/home/karve-ssh/.ssh"), 0o775); err != nil {
				t.Fatal(err)
			}
		}, []string{"/home/karve-ssh/.ssh", "0775", "run chmod go-w /home/karve-ssh/.ssh"}},
		{"another user's directory", func(t *testing.T, m *testMachine, _ *testServer, _ *Options) {
			if os.Geteuid() != 0 {
				t.Skip("only root can give files away")
			}
			if err := os.Chown(m.path("/home/karve-ssh"), 12345, 12345); err != nil {
				t.Fatal(err)
			}
		}, []string{"/home/karve-ssh belongs to user 12345", "run chown karve-ssh /home/karve-ssh"}},
		{"a directory elsewhere", func(t *testing.T, m *testMachine, _ *testServer, _ *Options) {
			m.write(t, "/root/.ssh/authorized_keys", "")
			if err := os.Symlink("../../root/.ssh", m.path("/home/karve-ssh/.ssh")); err != nil {
				t.Fatal(err)
			}
		}, []string{"/home/karve-ssh/.ssh is not a directory", "by hand"}},
		{"keys elsewhere", func(t *testing.T, m *testMachine, _ *testServer, _ *Options) {
			m.write(t, "/home/karve-ssh/.ssh/other", "")
			if err := os.Symlink("other", m.path(karvesKeys)); err != nil {
				t.Fatal(err)
			}
		}, []string{karvesKeys + " is not a file", "by hand"}},
		{"more than keys", func(t *testing.T, m *testMachine, _ *testServer, _ *Options) {
			m.write(t, karvesKeys, "")
			if err := os.Truncate(m.path(karvesKeys), maxKeys+1); err != nil {
				t.Fatal(err)
			}
		}, []string{karvesKeys + ": it is larger than 1048576 bytes", "by hand"}},
		{"no offer", func(_ *testing.T, _ *testMachine, s *testServer, _ *Options) { s.offer = nil }, []string{"--ssh-user karve-ssh", "offers no SSH key", "(it is Forbidden)", "start the server with --ssh-user karve-ssh"}},
		{"another user", func(_ *testing.T, _ *testMachine, s *testServer, _ *Options) { s.offer[tunnels.OfferUser] = "pi" }, []string{"--ssh-user karve-ssh", `logs in as "pi"`}},
		{"an offer without keys", func(_ *testing.T, _ *testMachine, s *testServer, _ *Options) {
			s.offer[tunnels.OfferLines] = "# none\n"
		}, []string{"authorized_keys: it has no key", "delete configmap karve-ssh"}},
		{"a malformed key", func(_ *testing.T, _ *testMachine, s *testServer, _ *Options) {
			s.offer[tunnels.OfferLines] = offered + "\nrestrict,port-forwarding ssh-ed25519 AAAA\n"
		}, []string{"authorized_keys: line 2", "delete configmap karve-ssh", "restart the server"}},
		{"a key that may do more", func(_ *testing.T, _ *testMachine, s *testServer, _ *Options) {
			s.offer[tunnels.OfferLines] = keyA + "\n"
		}, []string{"authorized_keys: line 1", "restrict is missing"}},
		{"the kubelet does not start", func(_ *testing.T, m *testMachine, _ *testServer, _ *Options) {
			m.answers["systemctl enable --quiet --now karve-node"] = func([]string) (string, error) {
				if got := m.read(karvesKeys); got != offered {
					return "", fmt.Errorf("it has the keys %q", got)
				}
				return "", errStandIn
			}
		}, []string{"could not be started", "it fails"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			s := newServer(t, "127.0.0.1")
			m := newMachine(t)
			o := optionsFor(s)
			o.Kubelet, o.SSHUser = withKubelet(t, m, s), "karve-ssh"
			withSSH(t, m, s, offered)
			tc.change(t, m, s, &o)
			before := m.tree(t)
			hadDir := m.exists("/home/karve-ssh/.ssh")
			wantError(t, Join(t.Context(), m.Machine, o), tc.want...)
			sameTree(t, before, m.tree(t))
			if m.exists(configDir) || m.exists("/home/karve-ssh/.ssh") != hadDir {
				t.Error("a directory is left over")
			}
		})
	}
}

// A server that has just started offers its key a moment after it is ready.
func TestJoinWaitsForTheOffer(t *testing.T) {
	t.Parallel()
	s := newServer(t, "127.0.0.1")
	m := newMachine(t)
	o := optionsFor(s)
	o.Kubelet, o.SSHUser, o.Patience = withKubelet(t, m, s), "karve-ssh", time.Minute
	withSSH(t, m, s, offered)
	s.offer, s.later = nil, s.offer
	if err := Join(t.Context(), m.Machine, o); err != nil {
		t.Fatal(err)
	}
	if got := m.read(karvesKeys); got != offered {
		t.Errorf("got the keys %q", got)
	}
}

// Everything in a home directory is its user's, who may replace it by a link while root works in it.
func TestKeysOutsideTheHomeDirectory(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	s := newServer(t, "127.0.0.1")
	withSSH(t, m, s, offered)
	l, err := m.login(t.Context(), "karve-ssh")
	if err != nil {
		t.Fatal(err)
	}
	m.write(t, "/root/.ssh/authorized_keys", "roots\n")
	if err := os.Symlink("../../root/.ssh", m.path("/home/karve-ssh/.ssh")); err != nil {
		t.Fatal(err)
	}
	before := m.tree(t)
	r := &record{}
	wantError(t, m.authorize(r, l, []string{offered}), "/home/karve-ssh/.ssh")
	f := keyFile{text: []byte("x"), mode: 0o600, uid: -1, gid: -1}
	home, err := os.OpenRoot(m.path("/home/karve-ssh"))
	if err != nil {
		t.Fatal(err)
	}
	defer home.Close()
	if err := f.write(home); err == nil {
		t.Error("keys were written through a link")
	}
	m.write(t, "/root/.ssh/authorized_keys", "roots\n"+offered+"\n")
	before["/root/.ssh/authorized_keys"] += offered + "\n"
	if err := m.withdraw(t.Context(), &access{Home: "/home/karve-ssh", Lines: []string{offered}}, t.Logf); err != nil {
		t.Error(err)
	}
	sameTree(t, before, m.tree(t))
}

// What the user may put into the place of the directory that root has just made stays as it is.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(path string) error{
		"":         func(path string) error { return os.Mkdir(path, 0o755) },
		"a file":   func(path string) error { return os.WriteFile(path, nil, 0o755) },
		"not ours": func(path string) error { return errors.Join(os.Mkdir(path, 0o755), os.Chown(path, 12345, 12345)) },
		"not empty": func(path string) error {
			return errors.Join(os.Mkdir(path, 0o755), os.WriteFile(filepath.Join(path, "x"), nil, 0o600))
		},
		"a link to one": func(path string) error {
			other := path + "-other"
			return errors.Join(os.Mkdir(other, 0o755), os.WriteFile(filepath.Join(other, "x"), nil, 0o600), os.Symlink(filepath.Base(other), path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			if name == "not ours" && os.Geteuid() != 0 {
				t.Skip("only root can give files away")
			}
			dir := t.TempDir()
			if err := replace(filepath.Join(dir, sshDir)); err != nil {
				t.Fatal(err)
			}
			home, err := os.OpenRoot(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer home.Close()
			l := &login{uid: os.Geteuid(), gid: os.Getegid()}
			err = l.takeOver(home)
			if (err == nil) != (name == "") {
				t.Errorf("got %v", err)
			}
			info, statErr := os.Stat(filepath.Join(dir, sshDir))
			if statErr != nil {
				t.Fatal(statErr)
			}
			want := os.FileMode(0o755)
			if name == "" {
				want = 0o700
			}
			if info.Mode().Perm() != want {
				t.Errorf("it has mode %o, want %o", info.Mode().Perm(), want)
			}
		})
	}
}

// A FIFO without a writer would keep root waiting, and a file without an end would fill its memory. What is no file does not keep a node from being removed, but is not passed over in silence.
func TestWithdrawFromWhatIsNoFile(t *testing.T) {
	t.Parallel()
	for name, replace := range map[string]func(home string) error{
		"a link elsewhere":    func(home string) error { return os.Symlink("/etc", filepath.Join(home, sshDir)) },
		"a file as directory": func(home string) error { return os.WriteFile(filepath.Join(home, sshDir), nil, 0o600) },
		"a link in its place": func(home string) error { return os.Symlink("other", filepath.Join(home, authorizedKeys)) },
		"a FIFO":              func(home string) error { return exec.Command("mkfifo", filepath.Join(home, authorizedKeys)).Run() },
		"a directory":         func(home string) error { return os.Mkdir(filepath.Join(home, authorizedKeys), 0o700) },
		"more than can be read": func(home string) error {
			path := filepath.Join(home, authorizedKeys)
			return errors.Join(os.WriteFile(path, nil, 0o600), os.Truncate(path, maxKeys+1))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			home := m.path("/home/karve-ssh")
			if err := os.MkdirAll(home, 0o755); err != nil {
				t.Fatal(err)
			}
			if !strings.HasSuffix(name, "elsewhere") && !strings.HasSuffix(name, "as directory") {
				if err := os.Mkdir(filepath.Join(home, sshDir), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := replace(home); err != nil {
				t.Fatal(err)
			}
			var said string
			say := func(format string, args ...any) { said += fmt.Sprintf(format, args...) }
			if err := m.withdraw(t.Context(), &access{User: "karve-ssh", Home: "/home/karve-ssh", Lines: []string{offered, another}, MadeDirectory: true}, say); err != nil {
				t.Fatal(err)
			}
			for _, want := range []string{karvesKeys, "by hand:\n" + offered + "\n" + another} {
				if !strings.Contains(said, want) {
					t.Errorf("%q is missing from %q", want, said)
				}
			}
		})
	}
}

// The keys may be in another directory than at the join, or in one that is not mounted.
func TestWithdrawWithoutTheHome(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	home := "/home/karve-ssh"
	a := &access{User: "karve-ssh", Home: "/home/karve-ssh", Lines: []string{offered}}
	m.answers["getent passwd karve-ssh"] = func([]string) (string, error) {
		return fmt.Sprintf("karve-ssh:x:%d:%d::%s:/usr/sbin/nologin\n", os.Getuid(), os.Getgid(), home), nil
	}
	wantError(t, m.withdraw(t.Context(), a, t.Logf), karvesKeys, "mount it, and try again")
	home = "/srv/karve-ssh"
	m.write(t, home+"/"+authorizedKeys, "# mine\n"+offered+"\n")
	if err := m.withdraw(t.Context(), a, t.Logf); err != nil {
		t.Error(err)
	}
	if got := m.read(home + "/" + authorizedKeys); got != "# mine" {
		t.Errorf("it has %q", got)
	}
	m.answers["getent passwd karve-ssh"] = func([]string) (string, error) { return "", errStandIn }
	wantError(t, m.withdraw(t.Context(), a, t.Logf), "it fails")
	m.answers["getent passwd karve-ssh"] = noSuchUser
	if err := m.withdraw(t.Context(), a, t.Logf); err != nil {
		t.Error(err)
	}
}
