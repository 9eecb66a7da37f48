// Package durability checks from outside that a cluster keeps what it has acknowledged. It runs the
// real binary, talks HTTP to it, kills it or breaks its disk, and compares what is there afterwards
// with what was acknowledged. See DESIGN.md.
package durability

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// startLimit bounds a start. It is generous: the machine may be busy.
const startLimit = 3 * time.Minute

// A Server is karve server in a process of its own. It can be killed and started again, with the
// same data directory and address.
type Server struct {
	Binary  string
	DataDir string
	Address string    // the IP address to listen at; empty: 127.0.0.1
	Args    []string  // more options of karve server
	Log     io.Writer // what the server prints; nil discards it
	Wrap    []string  // a command that runs the server, such as strace with its options

	port string // of the first start
	cmd  *exec.Cmd
	done chan struct{}
}

// readyLine is what karve server prints when it is ready (command/server.go, greet).
var readyLine = regexp.MustCompile(`(?m)^karve is ready after .* at (https://\S+)(?: and \S+)?\n`)

// Start runs the server, waits until it is ready and returns a client. The first start takes any
// free port, and later starts the same one.
func (s *Server) Start(ctx context.Context) (*API, error) {
	port := s.port
	if port == "" {
		port = "0"
	}
	address := s.Address
	if address == "" {
		address = "127.0.0.1"
	}
	args := append([]string{"server", "--config", os.DevNull, "--data-dir", s.DataDir, "--bind-address", address,
		"--insecure-port", "0", "--secure-port", port}, s.Args...)
	all := append(append(append([]string{}, s.Wrap...), s.Binary), args...)
	s.cmd = exec.Command(all[0], all[1:]...)
	endWithParent(s.cmd)
	out, log := &readyWriter{to: s.Log, ready: make(chan string, 1)}, s.Log
	if log == nil {
		log = io.Discard
	}
	s.cmd.Stdout, s.cmd.Stderr = out, log
	if err := s.cmd.Start(); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	s.done = done
	go func() {
		_ = s.cmd.Wait() // the result is in ProcessState
		close(done)
	}()
	limit := time.NewTimer(startLimit)
	defer limit.Stop()
	select {
	case url := <-out.ready:
		if _, p, err := net.SplitHostPort(strings.TrimPrefix(url, "https://")); err == nil {
			s.port = p
		}
		return Connect(url, s.DataDir)
	case <-done:
		return nil, fmt.Errorf("the server ended before it was ready: %v", s.cmd.ProcessState)
	case <-limit.C:
		return nil, errors.Join(fmt.Errorf("the server is not ready after %v", startLimit), s.Kill())
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), s.Kill())
	}
}

// PID is the process id of the server, or of the command that wraps it.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Ended is closed when the process has ended.
func (s *Server) Ended() <-chan struct{} { return s.done }

// State is how the process has ended.
func (s *Server) State() *os.ProcessState { return s.cmd.ProcessState }

// Kill ends the process with SIGKILL. It returns an error if the process had ended by itself.
func (s *Server) Kill() error {
	select {
	case <-s.done:
		return fmt.Errorf("the server had ended by itself: %v", s.cmd.ProcessState)
	default:
	}
	if err := s.cmd.Process.Kill(); err != nil {
		return err
	}
	<-s.done
	return nil
}

// Stop ends the process with SIGTERM, as a user does. It returns an error if that takes longer than
// limit, or the exit status is not 0.
func (s *Server) Stop(limit time.Duration) error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-s.done:
	case <-time.After(limit):
		return errors.Join(fmt.Errorf("the server still runs %v after SIGTERM", limit), s.Kill())
	}
	if !s.cmd.ProcessState.Success() {
		return fmt.Errorf("the server failed after SIGTERM: %v", s.cmd.ProcessState)
	}
	return nil
}

// Database is the path of the datastore's file.
func (s *Server) Database() string { return filepath.Join(s.DataDir, "mvcc.db") }

// Metrics reads the server's metrics page.
func (a *API) Metrics(ctx context.Context) ([]byte, error) {
	var page []byte
	err := a.Do(ctx, http.MethodGet, "/metrics", nil, &page)
	return page, err
}

// A readyWriter passes on what the server prints, and looks for the ready line.
type readyWriter struct {
	to    io.Writer
	ready chan string
	seen  []byte
	found bool
}

func (w *readyWriter) Write(p []byte) (int, error) {
	if !w.found {
		w.seen = append(w.seen, p...)
		if match := readyLine.FindSubmatch(w.seen); match != nil {
			w.found, w.seen = true, nil
			w.ready <- string(match[1])
		}
	}
	if w.to != nil {
		return w.to.Write(p)
	}
	return len(p), nil
}
