package socket

import (
	"errors"

	"golang.org/x/sys/windows"
)

func missing(err error) bool { return errors.Is(err, windows.WSAEAFNOSUPPORT) }
