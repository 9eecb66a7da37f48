package process

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"sync"
	"time"
)

// Limits of a start and of a stop. A busy machine may need that long.
const (
	StartLimit = 2 * time.Minute
	StopLimit  = time.Minute
)

// Child is a process that ends when its standard input does. So it ends with the process
// that started it, however that ends. Clusters of this package and of servertest use it.
type Child struct {
	cmd         *exec.Cmd
	stdin       io.Closer
	stdout, log Text
	ended       chan struct{}
}

// StartChild starts cmd, whose streams must be unset, and waits until it has printed ready.
// The error has what the child logged to standard error.
func StartChild(cmd *exec.Cmd, ready *regexp.Regexp) (*Child, error) {
	c := &Child{cmd: cmd, ended: make(chan struct{})}
	c.stdout.grown = make(chan struct{}, 1)
	cmd.Stdout, cmd.Stderr = &c.stdout, &c.log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.stdin = stdin
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		_ = cmd.Wait() // its ProcessState has the result
		close(c.ended)
	}()
	limit := time.NewTimer(StartLimit)
	defer limit.Stop()
	for {
		select {
		case <-c.stdout.grown:
			if ready.MatchString(c.stdout.String()) {
				return c, nil
			}
		case <-c.ended:
			return nil, fmt.Errorf("the cluster did not start (%v):\n%s", cmd.ProcessState, c.Log())
		case <-limit.C:
			return nil, errors.Join(fmt.Errorf("the cluster is not ready after %v:\n%s", StartLimit, c.Log()), c.Stop())
		}
	}
}

// Log returns what the child has written to standard error.
func (c *Child) Log() string { return c.log.String() }

// Stop ends the child, and returns an error if it did not end cleanly.
func (c *Child) Stop() error {
	c.stdin.Close()
	select {
	case <-c.ended:
	case <-time.After(StopLimit):
		c.cmd.Process.Kill()
		<-c.ended
		return fmt.Errorf("the cluster was still running %v after it was told to stop", StopLimit)
	}
	if !c.cmd.ProcessState.Success() {
		return fmt.Errorf("the cluster did not end cleanly: %v", c.cmd.ProcessState)
	}
	return nil
}

// Text keeps what is written to it. Several goroutines may write.
type Text struct {
	mu    sync.Mutex
	text  bytes.Buffer
	grown chan struct{} // nil: nothing waits
}

// Write adds p.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n, err := t.text.Write(p)
	select {
	case t.grown <- struct{}{}:
	default:
	}
	return n, err
}

// String returns all of it.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
