package server

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/karve-k8s/karve/control"
	"github.com/karve-k8s/karve/internal/socket"
	"github.com/karve-k8s/karve/server/localusers"
)

// listenLocally listens on the socket for users of this machine. With --socket-group, other users than root and the
// server's have to reach it: they may connect to the socket, and pass through the data directory to what they can
// name, but not list it. The listener is nil if this system does not tell who connects.
func (s *controlPlane) listenLocally() (net.Listener, error) {
	if !localusers.Known {
		return nil, nil
	}
	l, err := socket.Listen(s.DataDir, control.APISocket)
	if err != nil {
		return nil, err
	}
	if len(s.socketGroups) == 0 {
		return l, nil
	}
	info, err := os.Stat(s.DataDir)
	if err == nil {
		err = errors.Join(os.Chmod(s.DataDir, info.Mode().Perm()|0o011), os.Chmod(l.Path(), 0o666))
	}
	if err != nil {
		l.Close()
		return nil, fmt.Errorf("--socket-group: let users of this machine reach the socket: %w", err)
	}
	return l, nil
}
