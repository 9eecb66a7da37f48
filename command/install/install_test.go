package install

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/datastore/directory"
	"github.com/karve-k8s/karve/internal/ownership"
	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/server/marker"
)

func TestInstallAndChangeOptions(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.checks = `[{"check":"disk speed","result":"warn","found":"fsync 30ms","do":"a better card"}]`
	m.installs("v1", "--tls-san", "a.example", "--tls-san=b.example", "--no-controllers", "--secure-port", "443")
	m.upright("v1", "v1")
	m.says("check: warn: disk speed: fsync 30ms (a better card)")
	dir, schedule := "data-dir: '"+m.place.DataDir+"'\n", "backup-schedule: '@daily'\n"
	m.want("etc/karve/config.yaml", configBegins+"no-controllers: 'true'\nsecure-port: '443'\ntls-san:\n- 'a.example'\n- 'b.example'\n"+dir+schedule)
	if info, err := os.Stat(m.place.DataDir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the data directory: %v, %v", info, err)
	}
	m.installs("v1")
	m.says("installed already")
	if m.starts != 1 {
		t.Errorf("%d starts, want 1", m.starts)
	}
	m.installs("v1", "--tls-san=", "--secure-port", "it's")
	m.upright("v1", "v1")
	m.want("etc/karve/config.yaml", configBegins+"no-controllers: 'true'\nsecure-port: 'it''s'\n"+dir+schedule)
	m.says("no backup is made")
	if setup.Exists(m.place.DataDir + ".before-upgrade") {
		t.Error("a backup, although the same version converts nothing")
	}
}

// A restored cluster is the one that starts, although its configuration names other directories.
func TestInstallFromABackup(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.restore = func(_ context.Context, config, dataDir, endpoint string) error {
		if config != m.place.Config || dataDir != m.place.DataDir || endpoint != "" {
			t.Errorf("restored to %s, %s, %q", config, dataDir, endpoint)
		}
		m.write(config, "secure-port: 1\ndata-dir: /elsewhere/karve\ndatastore-endpoint: sqlite:///elsewhere/store\n")
		m.write(filepath.Join(dataDir, "mvcc.db"), "restored")
		return marker.Write(dataDir)
	}
	m.installs("v1", "--tls-san", "a.example")
	m.upright("v1", "restored v1")
	m.want("etc/karve/config.yaml", "secure-port: 1\ndata-dir: '"+m.place.DataDir+"'\ntls-san: 'a.example'\n")
	m.fails("--restore", "v2")
	m.upright("v1", "restored v1")
}

// What a restore has made goes if the installation is refused, so that the same command can follow.
func TestARefusalTakesTheRestoreBack(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	kept := filepath.Join(filepath.Dir(m.place.Config), "kept")
	m.write(kept, "mine")
	before := m.tree()
	m.restore = func(_ context.Context, config, dataDir, _ string) error {
		m.write(config, "secure-port: 1\n")
		m.write(filepath.Join(dataDir, "mvcc.db"), "restored")
		return marker.Write(dataDir)
	}
	m.checks = `[{"check":"ports","result":"fail","found":"in use"}]`
	m.fails("nothing was installed", "v1")
	m.differ(before, m.tree(), "bin")
	m.checks = "[]"
	m.installs("v1")
	m.upright("v1", "restored v1")
}

func TestNothingIsInstalledWithoutTheBackup(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.restore = func(context.Context, string, string, string) error { return errors.New("it is damaged") }
	m.fails("it is damaged; nothing was installed", "v1")
	if setup.Exists(m.place.Program()) || setup.Exists(m.place.Config) || m.starts > 0 {
		t.Errorf("something is installed; %d starts", m.starts)
	}
}

func TestNothingChangesIfTheCheckFails(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.checks = `[{"check":"datastore","result":"fail","found":"schema 99"}]`
	m.fails("1 of 1 checks failed", "v1")
	if setup.Exists(m.place.DataDir) || setup.Exists(m.place.Program()) {
		t.Error("something is left of it")
	}
	m.checks = "[]"
	m.installs("v1")
	m.checks = `[{"check":"datastore","result":"fail","found":"schema 99"}]`
	m.fails("the installed version is as it was", "v2")
	m.upright("v1", "v1")
}

// A server that is blocked has said that it is ready, and `karve status` tells that it is not.
func TestAFailedUpgradeReturns(t *testing.T) {
	t.Parallel()
	for behaviour, reason := range map[string]string{"dies": "not ready within", "spoils": "not ready within", "is blocked": "not ready: addons"} {
		t.Run(behaviour, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.installs("v1", "--secure-port", "1443")
			before := m.read(m.place.Config)
			m.fails("the earlier version is restored, and ready", "v2 "+behaviour, "--secure-port", "2443")
			m.upright("v1", "v1")
			m.says(reason)
			if m.read(m.place.Config) != before {
				t.Error("the configuration is not the one of before")
			}
		})
	}
}

func TestAPowerCutKeepsTheWayBack(t *testing.T) {
	t.Parallel()
	for _, next := range []string{"v2 dies", "v3 spoils"} { // the same version again, and another one
		t.Run(next, func(t *testing.T) {
			t.Parallel()
			m := newMachine(t)
			m.installs("v1")
			m.losesPower("v2")
			m.fails("the earlier version is restored", next)
			m.says("an earlier upgrade was cut short")
			if got, _ := m.program(m.place.Program()); got != "v1" {
				t.Errorf("got %s, want v1", got)
			}
			m.want("data/mvcc.db", "v1")
			m.want("data.before-upgrade/mvcc.db", "v1")
			m.installs("v2")
			m.upright("v2", "v1 v2")
		})
	}
}

func (m *machine) uninstall(purge bool) error {
	m.said.Reset()
	say := func(format string, args ...any) { fmt.Fprintf(&m.said, format+"\n", args...) }
	return (&Remover{Place: m.place, Purge: purge, Say: say, Warn: say}).Run(context.Background())
}

func (m *machine) uninstalls(purge bool) {
	m.t.Helper()
	if err := m.uninstall(purge); err != nil {
		m.t.Fatal(err)
	}
	if setup.Exists(m.place.Program()) || setup.Exists(m.place.Service.File) || setup.Exists(m.place.Uninstall) || m.started != "" {
		m.t.Error("the program, the unit or the script is still there")
	}
}

// An interruption while the old version stops starts it again.
func TestInterruptedWhileItStops(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.installs("v1")
	ctx, interrupt := context.WithCancel(t.Context())
	m.ctx, m.stop = ctx, interrupt
	m.fails("the installed version runs again", "v2")
	m.upright("v1", "v1")
}

// Nothing but what Karve has made differs after an upgrade, one that fails, and a removal; and what a killed installation left is gone.
func TestHandsOff(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	for _, mine := range []string{"bin/other", "etc/karve/cluster-token", "etc/karve.service.d/low-port.conf", "bin/.karve-install.", "bin/.karve-install.0/karve"} {
		m.write(filepath.Join(m.dir, mine), "mine")
	}
	alive := filepath.Join(m.place.BinDir, stagePrefix+strconv.Itoa(os.Getpid()), "karve") // of an install.sh that still downloads
	m.write(alive, "")
	before := m.tree()
	delete(before, "bin/.karve-install.")
	delete(before, "bin/.karve-install.0")
	delete(before, "bin/.karve-install.0/karve")
	m.installs("v1")
	installed := m.tree()
	m.fails("restored, and ready", "v2 dies", "--tls-san", "a")
	const backup = "data.before-upgrade"
	m.differ(installed, m.tree(), backup, backup+"/karve-data", backup+"/mvcc.db", backup+"/stats")
	m.installs("v2")
	m.differ(installed, m.tree(), "bin/karve", backup, backup+"/karve-data", backup+"/mvcc.db", backup+"/mvcc.db.previous", backup+"/stats", "data/mvcc.db")
	m.write(filepath.Join(m.place.DataDir, "manifests/app.yaml"), "mine")
	m.uninstalls(true)
	m.says(m.place.Service.File + ".d")
	m.says(filepath.Join(m.place.DataDir, "manifests"))
	m.differ(before, m.tree(), "data", "data/karve-data", "data/manifests", "data/manifests/app.yaml")
	m.installs("v1") // it goes on there
}

// What has a name of Karve's, and is not Karve's, is not replaced.
func TestOthersFilesAreRefused(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"bin/karve", "bin/karve.previous", "bin/karve-uninstall.sh", "etc/karve.service", "etc/karve/config.yaml.previous"} {
		m := newMachine(t)
		m.write(filepath.Join(m.dir, name), "mine")
		before := m.tree()
		m.fails(filepath.Join(m.dir, name)+" is ", "v1")
		delete(before, "bin")
		after := m.tree()
		delete(after, "bin")
		m.differ(before, after)
		if err := m.uninstall(true); err == nil {
			t.Error("it is removed")
		}
	}
	m := newMachine(t)
	m.installs("v1")
	m.write(m.place.Program(), "of somebody else, by now")
	m.fails("is another file than Karve's", "v2")
	if err := m.uninstall(false); err != nil || !setup.Exists(m.place.Program()) {
		t.Errorf("it is removed: %v", err)
	}
	m.says(m.place.Program())
}

// A configuration file may be a link to where its user keeps it.
func TestConfigurationBehindALink(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.write(filepath.Join(m.dir, "mine/karve.yaml"), "secure-port: 1\n")
	if err := errors.Join(os.MkdirAll(filepath.Dir(m.place.Config), 0o755), os.Symlink("../../mine/karve.yaml", m.place.Config)); err != nil {
		t.Fatal(err)
	}
	m.installs("v1")
	m.want("mine/karve.yaml", "secure-port: 1\ndata-dir: '"+m.place.DataDir+"'\n")
	m.uninstalls(true)
	m.says(m.place.Config)
	if !setup.Exists(filepath.Join(m.dir, "mine/karve.yaml")) || !setup.Exists(m.place.Config) {
		t.Error("the file or the link is gone")
	}
}

// Without an init system, nobody but the user starts and stops a server.
func TestWithoutAnInitSystem(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.place.Service.Init = setup.None
	m.installs("v1")
	next := "KUBECONFIG=" + m.place.DataDir + "/admin.kubeconfig " + m.place.Program() + " kubectl get namespaces" // it is not in PATH
	m.says(next)
	const old = "a server that runs is still the old version"
	m.installs("v2")
	m.saysNot(old)
	m.uninstalls(false)
	m.saysNot("is not stopped")

	m.installs("v2")
	if err := errors.Join(marker.Write(m.place.DataDir), os.Mkdir(filepath.Join(m.place.DataDir, "certs"), 0o700)); err != nil {
		t.Fatal(err)
	}
	lock, err := directory.Acquire(m.place.DataDir) // as a server that runs
	if err != nil {
		t.Fatal(err)
	}
	m.installs("v3")
	m.says(old)
	before := m.tree()
	if err := m.uninstall(true); !errors.Is(err, directory.ErrLocked) {
		t.Errorf("a purge under a server that runs: %v", err)
	}
	m.differ(before, m.tree())
	m.uninstalls(false)
	m.says("is not stopped")
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
}

// Where it is depends on where karve is called.
func TestRelativeDataDirInTheFile(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	m.installs("v1")
	m.write(m.place.Config, "data-dir: data\n")
	if err := m.uninstall(true); err == nil || !strings.Contains(err.Error(), m.place.Config+": data-dir: data is relative") {
		t.Errorf("got %v", err)
	}
	m.fails("want an absolute path", "v2")
	m.upright("v1", "v1")
}

// karve check reads files as the service, so they are the service's before it.
func TestTheServiceCanReadItsSecrets(t *testing.T) { // for a moment, the whole process is another user's
	if os.Geteuid() != 0 {
		t.Skip("only root can give files away")
	}
	m := newMachine(t)
	m.place.User = false
	etc := filepath.Dir(m.place.Config)
	token, key := filepath.Join(etc, "cluster-token"), filepath.Join(etc, "etcd-client.key")
	for _, file := range []string{token, key} {
		m.write(file, "secret")
	}
	c, err := newConfig(nil, Options{"cluster-token-file": {token}, "datastore-keyfile": {key}, "datastore-endpoint": {"sqlite://" + m.dir + "/a/b"}}, m.place.DataDir)
	if err = errors.Join(err, os.Chmod(filepath.Dir(m.dir), 0o755)); err != nil {
		t.Fatal(err)
	}
	nobody := ownership.Owner{UID: 65534, GID: 65534}
	i := &Installer{Place: m.place}
	undo, err := i.prepare(c, owner{"nobody", nobody})
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{token, key, m.place.DataDir} {
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := ownership.Of(info); got != nobody {
			t.Errorf("%s belongs to %s", path, got)
		}
	}
	if undo(); setup.Exists(m.dir + "/a") {
		t.Error("a directory is left")
	}
	if err := os.Chmod(etc, 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := i.prepare(c, owner{"nobody", nobody}); err == nil || !strings.Contains(err.Error(), "nobody cannot enter "+etc) {
		t.Errorf("a directory that the service cannot enter: got %v", err)
	}
}

// The scripts of packages ask the program, which reads the configuration as the server does.
func TestBackUpForAPackage(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	source := filepath.Join(m.dir, "usr/bin/karve")
	m.write(source, "v1")
	say := func(format string, args ...any) { fmt.Fprintf(&m.said, format+"\n", args...) }
	i := &Installer{Place: m.place, Source: source, Say: say, Warn: say}
	backup := m.place.DataDir + ".before-upgrade"
	for _, c := range []struct{ config, says, fails string }{
		{"", "", ""},
		{"datastore-endpoint: postgres://karve:secret@db/karve # ours", "back it up yourself", ""},
		{"datastore-endpoint: memory://", "an empty cluster", ""},
		{"data-dir: [", "", "config.yaml: yaml"},
	} {
		m.write(m.place.Config, c.config)
		m.said.Reset()
		if err := i.BackUp(t.Context()); (err == nil) != (c.fails == "") || err != nil && !strings.Contains(err.Error(), c.fails) || setup.Exists(backup) {
			t.Errorf("%q: got %v", c.config, err)
		}
		m.says(c.says)
	}
	m.write(m.place.DataDir+"/mvcc.db", "v1")
	m.write(m.place.Config, "data-dir:\n  '"+m.place.DataDir+"' # on the SSD\n")
	if err := errors.Join(os.Symlink(t.TempDir(), backup), i.BackUp(t.Context())); err == nil || !strings.Contains(err.Error(), "no link: move it away") {
		t.Errorf("a link: got %v", err)
	}
	if err := errors.Join(os.Remove(backup), i.BackUp(t.Context())); err != nil {
		t.Fatal(err)
	}
	m.want("data.before-upgrade/mvcc.db", "v1")
}
