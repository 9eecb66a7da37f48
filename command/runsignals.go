package command

import (
	"cmp"
	"context"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// signalOf is the signal that has ended ctx.
func signalOf(ctx context.Context) os.Signal {
	if s, ok := context.Cause(ctx).(stopSignal); ok {
		return s.Signal
	}
	return syscall.SIGTERM
}

func signalNumber(ctx context.Context) int { return int(signalOf(ctx).(syscall.Signal)) }

// witness is a process in Karve's process group. It is what tells a signal that the group got, and so
// the command as well, such as Ctrl-C, from one that only Karve got.
type witness struct {
	cmd  *exec.Cmd
	open io.Closer
}

// newWitness starts one if there is a terminal, which can send Ctrl-C. Without one, and without cat,
// every signal counts as Karve's own.
func newWitness() *witness {
	terminal, err := os.Open("/dev/tty")
	if err != nil {
		return nil
	}
	terminal.Close()
	w := &witness{cmd: exec.Command("cat")} // it ends with its standard input, and so with Karve
	if w.open, err = w.cmd.StdinPipe(); err != nil || w.cmd.Start() != nil {
		return nil
	}
	return w
}

// end ends the witness, and reports whether it had got the signal that has ended ctx. A signal that was
// sent before the end of its input is what ends it, so there is nothing to wait for.
func (w *witness) end(ctx context.Context) (heard bool) {
	if w == nil {
		return false
	}
	w.open.Close()
	w.cmd.Process.Signal(syscall.SIGCONT) // Ctrl-Z stops it as well
	w.cmd.Wait()
	status, ok := w.cmd.ProcessState.Sys().(syscall.WaitStatus)
	return ok && status.Signaled() && os.Signal(status.Signal()) == signalOf(ctx)
}

func terminate(p *os.Process) { p.Signal(syscall.SIGTERM) }

// userShell is the program of `karve run` without a command.
func userShell() string { return cmp.Or(os.Getenv("SHELL"), "/bin/sh") }

// exitCodeOf is a shell's exit code for a process that has ended.
func exitCodeOf(state *os.ProcessState) int {
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return exitSignal + int(status.Signal())
	}
	return state.ExitCode()
}
