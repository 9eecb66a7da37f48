//go:build !unix

package command

import (
	"cmp"
	"context"
	"os"
	"syscall"
)

// signalOf is the signal that has ended ctx.
func signalOf(context.Context) os.Signal { return os.Kill }

func signalNumber(context.Context) int { return int(syscall.SIGINT) }

// witness says that the command has heard each signal: Windows sends Ctrl-C to all processes of the
// console, and nothing else comes.
type witness struct{}

func newWitness() *witness { return nil }

func (*witness) end(context.Context) (heard bool) { return true }

func terminate(p *os.Process) { p.Kill() }

// userShell is the program of `karve run` without a command.
func userShell() string { return cmp.Or(os.Getenv("SHELL"), os.Getenv("ComSpec"), "cmd.exe") }

func exitCodeOf(state *os.ProcessState) int { return state.ExitCode() }
