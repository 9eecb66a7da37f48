//go:build !linux

package certificates

// machineClock is systemClock: a machine that wakes up looks like one whose clock was set.
func machineClock() clock { return systemClock() }
