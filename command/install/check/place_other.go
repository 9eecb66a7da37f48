//go:build !linux

package check

import (
	"errors"
)

func fleeting(string) (string, error) { return "", errors.ErrUnsupported }

func freeSpace(string) (int64, error) { return 0, errors.ErrUnsupported }

func tryFileSystem(string) error { return nil }
