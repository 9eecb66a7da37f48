package socket

import (
	"errors"
	"syscall"

	"golang.org/x/sys/windows"
)

func missing(err error) bool { return errors.Is(err, windows.WSAEAFNOSUPPORT) }

func private(string, string, syscall.RawConn) error { return nil } // there are no modes
