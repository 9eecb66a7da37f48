//go:build !unix

package command

import (
	"context"
	"os"
	"syscall"
)

// signalOf is the signal that has ended ctx.
func signalOf(context.Context) os.Signal { return os.Kill }

func signalNumber(context.Context) int { return int(syscall.SIGINT) }

// heardByAll: Windows sends Ctrl-C to all processes of the console, and nothing
// else comes.
func heardByAll(context.Context) bool { return true }

func terminate(p *os.Process) { p.Kill() }

func exitCodeOf(state *os.ProcessState) int { return state.ExitCode() }
