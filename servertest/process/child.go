package process

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"sync"
	"time"

	"github.com/karve-k8s/karve/servertest/process/child"
)

// Limits of a start and of a stop. A busy machine may need that long.
const (
	StartLimit = 2 * time.Minute
	StopLimit  = time.Minute
)

// Child is a process that ends when its standard input does. So it ends with the process
// that started it, however that ends. Clusters of this package and of servertest use it.
type Child struct {
	process *child.Process
	stdin   io.Closer
	log     Text
}

// StartChild starts cmd, whose streams must be unset, and waits until it has printed ready.
// The error has what the child logged to standard error.
func StartChild(cmd *exec.Cmd, ready *regexp.Regexp) (*Child, error) {
	c := &Child{}
	stdout := child.NewReady(ready, nil)
	cmd.Stdout, cmd.Stderr = stdout, &c.log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	c.stdin = stdin
	if c.process, err = child.Start(cmd); err != nil {
		return nil, err
	}
	if _, err := c.process.Await(context.Background(), stdout, StartLimit); err != nil {
		return nil, fmt.Errorf("the cluster did not start: %w:\n%s", err, c.Log())
	}
	return c, nil
}

// Log returns what the child has written to standard error.
func (c *Child) Log() string { return c.log.String() }

// Stop ends the child, and returns an error if it did not end cleanly.
func (c *Child) Stop() error {
	c.stdin.Close()
	if err := c.process.Wait(StopLimit); err != nil {
		return fmt.Errorf("stop the cluster: %w", err)
	}
	if state := c.process.State(); !state.Success() {
		return fmt.Errorf("the cluster did not end cleanly: %v", state)
	}
	return nil
}

// Text keeps what is written to it. Several goroutines may write.
type Text struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds p.
func (t *Text) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.Write(p)
}

// String returns all of it.
func (t *Text) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.text.String()
}
