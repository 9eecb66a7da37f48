package process

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"time"

	"github.com/karve-k8s/karve/servertest/process/child"
)

// Limits of a start and of a stop. A busy machine may need that long.
const (
	startLimit = 2 * time.Minute
	stopLimit  = time.Minute
)

// instance is the process of a cluster, with what is needed to start it again.
type instance struct {
	options options
	dir     string

	process *child.Process
	stdin   io.Closer // the process ends when its standard input does, so it ends with this one
	log     *child.Text
}

// readyLine begins what karve prints when everything is ready.
var readyLine = regexp.MustCompile(`(?m)^karve is ready after .*\n`)

// launch starts the process and waits until it is ready. The error has its log.
func (i *instance) launch(port string, more ...string) error {
	// Commits are not synced. They survive the end of the process, which is enough here.
	args := []string{"server", "--config", os.DevNull, "--data-dir", i.dir, "--stop-with-stdin", "--settle-after", "10s",
		"--bind-address", "127.0.0.1", "--insecure-port", "0",
		"--datastore-endpoint", "sqlite://" + (&url.URL{Path: i.dir}).EscapedPath() + "?durability=relaxed"}
	if i.options.apiOnly {
		args = append(args, "--no-controllers", "--disable-scheduler", "--disable-admission-plugins", "ServiceAccount")
	}
	args = slices.Concat(args, i.options.args, more, []string{"--secure-port", port})
	cmd := exec.Command(i.options.binary, args...)
	ready, log := child.NewReady(readyLine, nil), &child.Text{}
	cmd.Stdout, cmd.Stderr = ready, log
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	process, err := child.Start(cmd)
	if err != nil {
		return err
	}
	if _, err := process.Await(context.Background(), ready, startLimit); err != nil {
		return fmt.Errorf("the cluster did not start: %w:\n%s", err, log)
	}
	i.process, i.stdin, i.log = process, stdin, log
	return nil
}

// stop ends the process, and returns an error if it did not end cleanly.
func (i *instance) stop() error {
	i.stdin.Close()
	if err := i.process.Wait(stopLimit); err != nil {
		return fmt.Errorf("stop the cluster: %w", err)
	}
	if state := i.process.State(); !state.Success() {
		return fmt.Errorf("the cluster did not end cleanly: %v", state)
	}
	return nil
}
