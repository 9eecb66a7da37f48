package join

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/karve-k8s/karve/internal/setup"
)

// newProgram is a karve that is to be installed.
func newProgram(t *testing.T, version string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "karve")
	if err := os.WriteFile(file, []byte(version+byKarve), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

const byKarve = " (Written by karve)"

// version is that of the installed program.
func (m *testMachine) version() string { return strings.TrimSuffix(m.read(ProgramFile), byKarve) }

func quiet(string, ...any) {}

func TestInstallAndUninstall(t *testing.T) {
	t.Parallel()
	s := newServer(t, "127.0.0.1")
	m := newMachine(t)
	before := m.tree(t)
	o := optionsFor(s)
	o.Kubelet = withKubelet(t, m, s)
	if err := Install(t.Context(), m.Machine, newProgram(t, "v1"), o); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(m.path(ProgramFile)); err != nil || info.Mode().Perm() != 0o755 || m.version() != "v1" {
		t.Errorf("the program is %v, %v, %q", info, err, m.version())
	}
	if to, err := os.Readlink(m.path(kubectlFile)); err != nil || to != "karve" {
		t.Errorf("kubectl is %s, %v", to, err)
	}
	if text := m.read(followUnit); !strings.Contains(text, `ExecStart="`+ProgramFile+`" `) {
		t.Errorf("the unit starts another program than the installed one: %s", text)
	}
	if joined, own, err := Joined(m.Machine); !joined || own || err != nil {
		t.Errorf("got %t, %t, %v, want a node of another server", joined, own, err)
	}
	if stays, err := UninstallWithServer(t.Context(), m.Machine, quiet); !stays || err != nil || !m.exists(ProgramFile) {
		t.Errorf("a server's uninstaller: got %t, %v, want that another server's node stays", stays, err)
	}
	// Without a server and a token, it is an upgrade.
	if err := Install(t.Context(), m.Machine, newProgram(t, "v2"), Options{}); err != nil {
		t.Fatal(err)
	}
	if got := m.version(); got != "v2" || m.exists(ProgramFile+setup.PreviousSuffix) {
		t.Errorf("the program is %s, or the one before is left", got)
	}
	// An upgrade that fails changes no program.
	wantError(t, Install(t.Context(), m.Machine, newProgram(t, "v3"), Options{Kubelet: "/nowhere", Server: s.url + "0"}), "already the node")
	wantError(t, Install(t.Context(), m.Machine, newProgram(t, "v3"), Options{OwnServer: true}), "a node of another server", UninstallFile)
	if got := m.version(); got != "v2" {
		t.Errorf("the program is %s", got)
	}
	if text := m.read(UninstallFile); !strings.HasPrefix(text, "#!/bin/sh\n") || !strings.HasSuffix(text, "exec /usr/local/bin/karve node uninstall") {
		t.Errorf("the uninstaller is %q", text)
	}
	if err := Uninstall(t.Context(), m.Machine, quiet); err != nil {
		t.Fatal(err)
	}
	sameTree(t, before, m.tree(t))
	if _, err := os.Lstat(m.path(kubectlFile)); err == nil {
		t.Error("kubectl is left over")
	}
	if err := Uninstall(t.Context(), m.Machine, quiet); !errors.Is(err, errNoNode) {
		t.Errorf("got %v, want that it is no node", err)
	}
}

func TestInstallThatFails(t *testing.T) {
	t.Parallel()
	s := newServer(t, "127.0.0.1")
	for name, there := range map[string]string{"on a bare machine": "", "where there is a karve": "v0" + byKarve} {
		m := newMachine(t)
		if there != "" {
			m.write(t, ProgramFile, there)
		}
		before := m.tree(t)
		o := optionsFor(s)
		o.Kubelet = "/nowhere/kubelet"
		wantError(t, Install(t.Context(), m.Machine, newProgram(t, "v1"), o), "/nowhere/kubelet")
		sameTree(t, before, m.tree(t))
		if _, err := os.Lstat(m.path(kubectlFile)); err == nil {
			t.Errorf("%s: kubectl is left over", name)
		}
	}
	m := newMachine(t)
	m.write(t, ProgramFile, "of somebody else")
	wantError(t, Install(t.Context(), m.Machine, newProgram(t, "v1"), optionsFor(s)), ProgramFile+" is another file", "nothing was changed")
	// What a join cannot take back is named, and removed later.
	m = newMachine(t)
	before := m.tree(t)
	o := optionsFor(s)
	o.Kubelet = withKubelet(t, m, s)
	m.answers["systemctl enable"] = func([]string) (string, error) { return "", errStandIn }
	m.answers["systemctl disable"] = func([]string) (string, error) { return "", errStandIn }
	wantError(t, Install(t.Context(), m.Machine, newProgram(t, "v1"), o), "remove it with "+UninstallFile)
	delete(m.answers, "systemctl disable")
	if m.version() != "v1" {
		t.Error("there is no program to remove the rest")
	}
	if err := Uninstall(t.Context(), m.Machine, quiet); err != nil {
		t.Error(err)
	}
	sameTree(t, before, m.tree(t))
}

// A power cut leaves the new program, and the copy of the one before, which comes back.
func TestInstallAfterAPowerCut(t *testing.T) {
	t.Parallel()
	s := newServer(t, "127.0.0.1")
	m := newMachine(t)
	m.write(t, ProgramFile, "v0"+byKarve)
	before := m.tree(t)
	files, err := setup.Begin(m.path(filepath.Dir(ProgramFile)))
	if err == nil {
		err = files.Replace(m.path(ProgramFile), []byte("v1"), 0o755, -1)
		files.End()
	}
	if err != nil {
		t.Fatal(err)
	}
	o := optionsFor(s)
	o.Kubelet = "/nowhere/kubelet"
	wantError(t, Install(t.Context(), m.Machine, newProgram(t, "v2"), o), "/nowhere/kubelet")
	sameTree(t, before, m.tree(t))
}

func TestInstallBesideAServer(t *testing.T) {
	t.Parallel()
	s := newServer(t, "127.0.0.1")
	m := newMachine(t)
	m.write(t, ProgramFile, "the server's")
	m.write(t, serverUninstall, "")
	before := m.tree(t)
	o := optionsFor(s)
	o.Kubelet, o.OwnServer = withKubelet(t, m, s), true
	if err := Install(t.Context(), m.Machine, newProgram(t, "v1"), o); err != nil {
		t.Fatal(err)
	}
	if got := m.version(); got != "the server's" {
		t.Errorf("the server's program is %s", got)
	}
	if joined, own, err := Joined(m.Machine); !joined || !own || err != nil {
		t.Errorf("got %t, %t, %v, want the server's own node", joined, own, err)
	}
	if stays, err := UninstallWithServer(t.Context(), m.Machine, quiet); stays || err != nil {
		t.Fatalf("got %t, %v", stays, err)
	}
	sameTree(t, before, m.tree(t))
	// `karve node remove` leaves the script.
	m.write(t, UninstallFile, "")
	if stays, err := UninstallWithServer(t.Context(), m.Machine, quiet); stays || err != nil || m.exists(UninstallFile) {
		t.Errorf("got %t, %v, or the script is left", stays, err)
	}
	if stays, err := UninstallWithServer(t.Context(), m.Machine, quiet); stays || err != nil {
		t.Errorf("without a node: got %t, %v", stays, err)
	}
}

// Two at once would take away each other's files.
func TestInstallHasALock(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	unlock, err := setup.Lock(m.path(filepath.Dir(ProgramFile)))
	if err != nil {
		t.Fatal(err)
	}
	wantError(t, Install(t.Context(), m.Machine, newProgram(t, "v1"), Options{}), "another command of Karve")
	wantError(t, Uninstall(t.Context(), m.Machine, quiet), "another command of Karve")
	unlock()
	if err := Uninstall(t.Context(), m.Machine, quiet); !errors.Is(err, errNoNode) {
		t.Errorf("got %v", err)
	}
}
