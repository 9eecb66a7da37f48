package kine

import (
	"errors"

	"golang.org/x/sys/windows"
)

// noSockets tells that this Windows has no unix sockets: only tools of etcd's
// would use it.
func noSockets(err error) bool { return errors.Is(err, windows.WSAEAFNOSUPPORT) }
