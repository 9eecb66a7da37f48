// Package child runs servers in processes of their own, for tests and benchmarks of Karve.
package child

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"syscall"
	"time"
)

// A Process is a program that has been started. Nothing else may wait for it.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// Start starts cmd.
func Start(cmd *exec.Cmd) (*Process, error) {
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // its ProcessState has the result
		close(p.ended)
	}()
	return p, nil
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// State is how the process has ended.
func (p *Process) State() *os.ProcessState { return p.cmd.ProcessState }

// Running reports whether the process has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Kill ends the process with SIGKILL. It returns an error if the process had ended by itself.
func (p *Process) Kill() error {
	if !p.Running() {
		return fmt.Errorf("it had ended by itself: %v", p.State())
	}
	if err := p.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-p.ended
	return nil
}

// Stop ends the process with SIGTERM, and with SIGKILL and an error if that takes longer than limit.
func (p *Process) Stop(limit time.Duration) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	return p.Wait(limit)
}

// Wait waits until the process has ended. After limit, it kills the process and returns an error.
func (p *Process) Wait(limit time.Duration) error {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case <-p.ended:
		return nil
	case <-timer.C:
		return errors.Join(fmt.Errorf("it still runs %v after it was told to stop", limit), p.Kill())
	}
}

// Await waits until the process has printed what ready looks for, and returns the submatches. It kills a process
// that has not done so within limit, or before ctx ends.
func (p *Process) Await(ctx context.Context, ready *Ready, limit time.Duration) ([]string, error) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	select {
	case match := <-ready.found:
		return match, nil
	case <-p.ended:
		return nil, fmt.Errorf("it ended before it was ready: %v", p.State())
	case <-timer.C:
		return nil, errors.Join(fmt.Errorf("it is not ready after %v", limit), p.Kill())
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), p.Kill())
	}
}

// Ready is the standard output of a process. It passes on what is printed, and looks for a text.
type Ready struct {
	text  *regexp.Regexp
	to    io.Writer
	found chan []string
	seen  []byte // nil once the text has been found
}

// NewReady returns a Ready that looks for text. to may be nil.
func NewReady(text *regexp.Regexp, to io.Writer) *Ready {
	if to == nil {
		to = io.Discard
	}
	return &Ready{text: text, to: to, found: make(chan []string, 1), seen: []byte{}}
}

// Write looks at p and passes it on.
func (r *Ready) Write(p []byte) (int, error) {
	if r.seen != nil {
		r.seen = append(r.seen, p...)
		if match := r.text.FindStringSubmatch(string(r.seen)); match != nil {
			r.seen = nil
			r.found <- match
		}
	}
	return r.to.Write(p)
}
