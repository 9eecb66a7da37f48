package install

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/server/marker"
)

// machine stands for systemd and for programs. A program is a file with its version, and what it does when it starts:
// "dies", "is blocked" (it says that it is ready, and is not), "spoils" its data and dies, or "loses power".
type machine struct {
	t       *testing.T
	dir     string
	place   Place
	started string // the version that runs
	blocked bool
	starts  int
	checks  string // what karve check finds
	restore func(ctx context.Context, config, dataDir, endpoint string) error
	stop    func() // while the service stops
	ctx     context.Context
	said    strings.Builder
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	dir := t.TempDir()
	m := &machine{t: t, dir: dir, checks: "[]", stop: func() {}, ctx: t.Context()}
	m.place = Place{
		User: true, BinDir: filepath.Join(dir, "bin"), Config: filepath.Join(dir, "etc/karve/config.yaml"), DataDir: filepath.Join(dir, "data"),
		Lookup: func(string) bool { return true }, Uninstall: filepath.Join(dir, "bin/karve-uninstall.sh"),
		Service: setup.Service{Name: "karve", Init: setup.Systemd, User: true, File: filepath.Join(dir, "etc/karve.service"), Run: m.run},
	}
	return m
}

var errExit = errors.New("exit status 1")

func (m *machine) run(_ context.Context, name string, args ...string) (string, error) {
	if name == "systemctl" {
		return m.systemctl(args[1])
	}
	if !strings.HasPrefix(name, m.dir) {
		return "", nil
	}
	version, _ := m.program(name)
	data := filepath.Join(m.place.DataDir, "mvcc.db")
	last := args[len(args)-1]
	switch strings.Join(args[:2], " ") {
	case "check -o":
		if strings.Contains(m.checks, `"fail"`) {
			return m.checks, errExit
		}
		return m.checks, nil
	case "datastore stats":
		return m.read(data), nil
	case "datastore backup":
		os.Remove(last) // it replaces the file, and does not write into it
		return "backed up by " + version, os.WriteFile(last, []byte(m.read(data)), 0o600)
	case "datastore restore":
		return "restored", os.WriteFile(data, []byte(m.read(last)), 0o600)
	}
	return "", fmt.Errorf("%s %q is not known to the test", name, args)
}

// program is what a program of the test is.
func (m *machine) program(file string) (version, behaviour string) {
	text, _, _ := strings.Cut(m.read(file), "\n")
	version, behaviour, _ = strings.Cut(text, " ")
	return version, behaviour
}

func (m *machine) systemctl(verb string) (string, error) {
	switch verb {
	case "is-active":
		if m.started == "" {
			return "inactive\n", errExit
		}
		return "active\n", nil
	case "stop":
		m.stop()
		m.started = ""
	case "start":
		return "", m.start()
	case "is-failed":
		return "", errExit
	}
	return "", nil
}

func (m *machine) start() error {
	m.starts++
	version, behaviour := m.program(m.place.Program())
	data := filepath.Join(m.place.DataDir, "mvcc.db")
	if behaviour == "dies" {
		return nil
	}
	content := m.read(data)
	if !strings.HasSuffix(content, version) {
		content = strings.TrimSpace(content + " " + version)
	}
	if behaviour == "spoils" {
		content = "spoilt"
	}
	if err := errors.Join(marker.Write(m.place.DataDir), os.WriteFile(data, []byte(content), 0o600)); err != nil {
		return err
	}
	if behaviour == "loses power" {
		panic(behaviour)
	}
	if behaviour != "spoils" {
		m.started, m.blocked = version, behaviour == "is blocked"
	}
	return nil
}

// install installs a program with options.
func (m *machine) install(program string, options ...string) error {
	m.t.Helper()
	source := filepath.Join(m.dir, "download")
	m.write(source, program+"\n# Written by karve.")
	known := Known{"data-dir": true, "tls-san": true, "secure-port": true, "no-controllers": false}
	given, _, err := ReadOptions(options, nil, known)
	if err != nil {
		m.t.Fatal(err)
	}
	say := func(format string, args ...any) { fmt.Fprintf(&m.said, format+"\n", args...) }
	m.said.Reset()
	i := &Installer{Place: m.place, Source: source, Version: "Karve " + program, Check: true, Restore: m.restore, Say: say, Warn: say,
		Ready: func(context.Context, string) error {
			if m.blocked {
				return errors.New("not ready: addons")
			}
			return nil
		}}
	_, err = i.Run(m.ctx, given)
	return err
}

func (m *machine) installs(program string, options ...string) {
	m.t.Helper()
	if err := m.install(program, options...); err != nil {
		m.t.Fatalf("%v\n%s", err, m.said.String())
	}
}

func (m *machine) fails(want, program string, options ...string) {
	m.t.Helper()
	if err := m.install(program, options...); err == nil || !strings.Contains(err.Error(), want) {
		m.t.Fatalf("got %v, want %q\n%s", err, want, m.said.String())
	}
}

// losesPower installs a program during whose start the power fails.
func (m *machine) losesPower(version string) {
	m.t.Helper()
	defer func() {
		if recover() == nil {
			m.t.Fatal("the power did not fail")
		}
		m.started = ""
	}()
	_ = m.install(version + " loses power")
}

// upright fails unless this version runs on these data, and nothing of an installation lies about.
func (m *machine) upright(version, data string) {
	m.t.Helper()
	if got, _ := m.program(m.place.Program()); got != version || m.started != version {
		m.t.Errorf("got %s installed and %s running, want %s\n%s", got, m.started, version, m.said.String())
	}
	m.want("data/mvcc.db", data)
	for _, pattern := range []string{"*/*.previous", "*/.karve-*", "*/*/*.previous", "*/*/.karve-*"} {
		if left, _ := filepath.Glob(filepath.Join(m.dir, pattern)); len(left) > 0 && !strings.Contains(left[0], "before-upgrade") {
			m.t.Errorf("left over: %q", left)
		}
	}
}

// tree has the mode and content of every file and directory, but for the download.
func (m *machine) tree() map[string]string {
	m.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(m.dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && path != filepath.Join(m.dir, "download") {
			info, _ := e.Info()
			to, _ := os.Readlink(path)
			all[strings.TrimPrefix(path, m.dir+"/")] = info.Mode().String() + " " + to + m.read(path)
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return all
}

// differ fails unless these are the names by which two trees differ.
func (m *machine) differ(a, b map[string]string, names ...string) {
	m.t.Helper()
	both := maps.Clone(a)
	maps.Copy(both, b)
	maps.DeleteFunc(both, func(name, _ string) bool { return a[name] == b[name] })
	if got := slices.Sorted(maps.Keys(both)); !slices.Equal(got, names) {
		m.t.Errorf("these files differ: %q, want %q\n%s", got, names, m.said.String())
	}
}

func (m *machine) read(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

func (m *machine) write(path, text string) {
	m.t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
		m.t.Fatal(err)
	}
}

// want compares a file below the machine's directory.
func (m *machine) want(file, text string) {
	m.t.Helper()
	if got := m.read(filepath.Join(m.dir, file)); got != text {
		m.t.Errorf("%s: got %q, want %q", file, got, text)
	}
}

func (m *machine) says(text string) {
	m.t.Helper()
	if !strings.Contains(m.said.String(), text) {
		m.t.Errorf("it does not say %q:\n%s", text, m.said.String())
	}
}

func (m *machine) saysNot(text string) {
	m.t.Helper()
	if strings.Contains(m.said.String(), text) {
		m.t.Errorf("it says %q:\n%s", text, m.said.String())
	}
}
