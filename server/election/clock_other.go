//go:build !linux

package election

var suspendedToo clock = wallClock
