package join

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/karve-k8s/karve/internal/atomicfile"
	"github.com/karve-k8s/karve/internal/setup"
	"github.com/karve-k8s/karve/nodes/join/ask"
)

// What Install places beside what Join does.
const (
	// ProgramFile is the installed program.
	ProgramFile = "/usr/local/bin/karve"
	kubectlFile = "/usr/local/bin/kubectl"
	// UninstallFile is the script that removes the node.
	UninstallFile = "/usr/local/bin/karve-node-uninstall.sh"
	// serverUninstall is there if a server is installed. Then the program is the server's, which is replaced
	// only with a backup and a way back.
	serverUninstall = "/usr/local/bin/karve-uninstall.sh"
)

// Joined tells whether this machine is a node, and whether it is that of the server on it.
func Joined(m *Machine) (joined, own bool, err error) {
	r, err := m.readRecord()
	return r != nil, r != nil && r.OwnServer, err
}

// Accepted tells whether a server accepts the certificate of this machine's kubelet. It is true if nobody knows.
func Accepted(ctx context.Context, m *Machine, server string) bool {
	client, err := m.ownClient(server)
	if err != nil {
		return true
	}
	_, err = client.Discovery().ServerVersion()
	return !ask.NotAccepted(err)
}

// HasServer tells whether a server is installed on this machine.
func HasServer(m *Machine) bool { return m.exists(serverUninstall) }

// Install installs a program as karve, and makes this machine a node as Join does. A machine that is a node is
// upgraded as by Upgrade, if no server and no token are given, or if it is the node of its own server. If there
// is no node in the end, nothing is left of the program either.
func Install(ctx context.Context, m *Machine, program string, o Options) error {
	if err := m.supported(); err != nil {
		return err
	}
	files, err := setup.Begin(m.path(filepath.Dir(ProgramFile)))
	if err != nil {
		return err
	}
	defer files.End()
	r, err := m.readRecord()
	if err != nil {
		return err
	}
	if r == nil {
		err = files.Claim(m.path(UninstallFile), false)
	}
	if err == nil && !HasServer(m) {
		err = files.Claim(m.path(ProgramFile), false)
	}
	if err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	m.Program = ProgramFile
	if r != nil {
		act := Join
		switch {
		case o.OwnServer && !r.OwnServer:
			return fmt.Errorf("this machine is a node of another server: %s removes it", UninstallFile)
		case o.OwnServer && o.Token != "":
			act = func(ctx context.Context, m *Machine, o Options) error {
				again := o
				again.Name = r.Node
				if err := Join(ctx, m, again); err != nil {
					return err
				}
				return Upgrade(ctx, m, o)
			}
		case o.OwnServer, o.Server == "" && o.Token == "":
			act = Upgrade
		}
		// The program that made the node is there until this has succeeded.
		if err := act(ctx, m, o); err != nil {
			return err
		}
	}
	undo, err := m.placeProgram(ctx, files, program)
	if err != nil {
		return fmt.Errorf("%s could not be written: %w", ProgramFile, err)
	}
	if r == nil {
		// It is there before the node, so that a join that was killed can be removed.
		if err = m.writeUninstaller(); err == nil {
			err = Join(ctx, m, o)
		}
		if err != nil {
			if m.exists(recordFile) {
				return fmt.Errorf("%w; a part of the node is left on this machine: remove it with %s, and try again", err, UninstallFile)
			}
			return errors.Join(err, undo(), removeIfThere(m.path(UninstallFile)))
		}
	}
	if err := m.writeUninstaller(); err != nil {
		return err
	}
	if !HasServer(m) { // otherwise they are the server's
		files.Forget()
	}
	return nil
}

// writeUninstaller writes the script that removes the node.
func (m *Machine) writeUninstaller() error {
	return atomicfile.Write(m.path(UninstallFile), []byte("#!/bin/sh\n# Removes the node. Written by karve node install.\nexec "+ProgramFile+" node uninstall\n"), 0o755)
}

// placeProgram makes a file the installed program, if no server has one, and returns what undoes that.
func (m *Machine) placeProgram(ctx context.Context, files *setup.Files, program string) (undo func() error, err error) {
	target := m.path(ProgramFile)
	if HasServer(m) || atomicfile.Same(program, target) {
		return func() error { return nil }, nil
	}
	in, err := os.Open(program)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	staged, err := setup.Stage(target, 0o755, -1, func(w io.Writer) error { _, err := io.Copy(w, in); return err })
	if err != nil {
		return nil, err
	}
	link := ""
	if err := files.ReplaceBy(target, staged); err != nil {
		return nil, errors.Join(err, os.Remove(staged))
	}
	if m.has("restorecon") {
		_, _ = m.run(ctx, "restorecon", ProgramFile)
	}
	if !m.has("kubectl") && os.Symlink("karve", m.path(kubectlFile)) == nil {
		link = m.path(kubectlFile)
	}
	return func() error {
		if link != "" {
			os.Remove(link)
		}
		return files.PutBack()
	}, nil
}

// Uninstall is Remove, and takes away what Install placed. The program stays if a server needs it.
func Uninstall(ctx context.Context, m *Machine, say func(string, ...any)) error {
	if err := m.supported(); err != nil {
		return err
	}
	files, err := setup.Begin(m.path(filepath.Dir(ProgramFile)))
	if err != nil {
		return err
	}
	defer files.End()
	if err := m.uninstall(ctx, say); err != nil {
		return err
	}
	if !HasServer(m) {
		files.Forget()
	}
	return nil
}

func (m *Machine) uninstall(ctx context.Context, say func(string, ...any)) error {
	r, err := m.readRecord()
	if err != nil {
		return err
	}
	if r == nil && !m.exists(UninstallFile) {
		return errNoNode
	}
	if r != nil { // `karve node remove` may have been called already
		if err := m.undo(ctx, r, say); err != nil {
			return err
		}
	}
	var wrong []error
	if !HasServer(m) {
		if to, err := os.Readlink(m.path(kubectlFile)); err == nil && to == "karve" {
			wrong = append(wrong, os.Remove(m.path(kubectlFile)))
		}
		if setup.Ours(m.path(ProgramFile)) {
			wrong = append(wrong, os.Remove(m.path(ProgramFile)))
		}
	}
	return errors.Join(append(wrong, removeIfThere(m.path(UninstallFile)))...)
}

// UninstallWithServer is Uninstall for the uninstaller of a server, which has the lock. It leaves a node of another
// server, which needs the program, and tells so.
func UninstallWithServer(ctx context.Context, m *Machine, say func(string, ...any)) (stays bool, err error) {
	joined, own, err := Joined(m)
	if err != nil || joined && !own {
		return joined, err
	}
	if err := m.uninstall(ctx, say); err != nil && !errors.Is(err, errNoNode) {
		return true, err
	}
	return false, nil
}
