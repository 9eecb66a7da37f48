//go:build !linux

package server

// machineClock is systemClock: a machine that wakes up looks like one whose clock was set.
func machineClock() clock { return systemClock() }
