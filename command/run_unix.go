//go:build unix

package command

import (
	"context"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// signalOf is the signal that has ended ctx.
func signalOf(ctx context.Context) os.Signal {
	if s, ok := context.Cause(ctx).(stopSignal); ok {
		return s.Signal
	}
	return syscall.SIGTERM
}

func signalNumber(ctx context.Context) int { return int(signalOf(ctx).(syscall.Signal)) }

// heardByAll tells whether the command has had the signal already: the terminal
// sends Ctrl-C to all that run in its foreground.
func heardByAll(ctx context.Context) bool {
	if signalOf(ctx) != os.Interrupt {
		return false
	}
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return false
	}
	defer terminal.Close()
	foreground, err := unix.IoctlGetInt(int(terminal.Fd()), unix.TIOCGPGRP)
	return err == nil && foreground == syscall.Getpgrp()
}

func terminate(p *os.Process) { p.Signal(syscall.SIGTERM) }

// exitCodeOf is a shell's exit code for a process that has ended.
func exitCodeOf(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignal + int(status.Signal())
	}
	return state.ExitCode()
}
