// Package durability checks from outside that a cluster keeps what it has acknowledged. It runs the
// real binary, talks HTTP to it, kills it or breaks its disk, and compares what is there afterwards
// with what was acknowledged. See DESIGN.md.
package durability

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/karve-k8s/karve/servertest/process/child"
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

	*child.Process // of the last start
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
	cmd := exec.Command(all[0], all[1:]...)
	child.EndWithParent(cmd)
	ready := child.NewReady(readyLine, s.Log)
	cmd.Stdout, cmd.Stderr = ready, s.Log
	var err error
	if s.Process, err = child.Start(cmd); err != nil {
		return nil, err
	}
	match, err := s.Await(ctx, ready, startLimit)
	if err != nil {
		return nil, fmt.Errorf("the server: %w", err)
	}
	if _, p, err := net.SplitHostPort(strings.TrimPrefix(match[1], "https://")); err == nil {
		s.port = p
	}
	return Connect(match[1], s.DataDir)
}

// Stop ends the process with SIGTERM, as a user does. It returns an error if that takes longer than
// limit, or the exit status is not 0.
func (s *Server) Stop(limit time.Duration) error {
	if err := s.Process.Stop(limit); err != nil {
		return fmt.Errorf("stop the server: %w", err)
	}
	if !s.State().Success() {
		return fmt.Errorf("the server failed after SIGTERM: %v", s.State())
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
