//go:build !windows

package socket

func missing(error) bool { return false }
