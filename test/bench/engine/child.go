package engine

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/karve-k8s/karve/test/bench/load"
	"github.com/karve-k8s/karve/test/bench/machine"
)

// Every peer runs in a process of its own: this binary, with
//
//	child ROLE DIR PLAN
//
// It writes lines of JSON to its standard output, and ends when its standard input is closed, so
// that it does not outlive the benchmark.
const (
	ChildCommand = "child"
	roleDirect   = "karve"        // the engine's Go API
	roleClient   = "karve-client" // etcd's client on the engine, without a socket

	// stopTimeout is how long a child may take to end before it is killed.
	stopTimeout = 5 * time.Second
)

// A message is a line that a child writes.
type message struct {
	Endpoint string       `json:",omitempty"` // the peer is ready to serve
	Row      *load.Result `json:",omitempty"` // a row is done
	Round    *round       `json:",omitempty"` // all are
	Error    string       `json:",omitempty"`
}

// Child is the command of a peer in a process of its own.
func Child(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) != 3 {
		return fmt.Errorf("%s is a command of the benchmark itself", ChildCommand)
	}
	role, dir := args[0], args[1]
	var p plan
	if err := json.Unmarshal([]byte(args[2]), &p); err != nil {
		return fmt.Errorf("read plan: %w", err)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		io.Copy(io.Discard, stdin)
		cancel()
	}()
	enc := json.NewEncoder(stdout)
	fail := func(err error) error {
		enc.Encode(message{Error: err.Error()})
		return err
	}
	if open, ok := local[role]; ok {
		s, closeStore, err := open(ctx, dir)
		if err != nil {
			return fail(err)
		}
		defer closeStore()
		b := &bench{store: s, plan: p, peer: machine.OwnPID, dir: dir, file: files[role], progress: func(r load.Result) { enc.Encode(message{Row: &r}) }}
		r, err := b.measure(ctx)
		if err != nil {
			return fail(err)
		}
		return enc.Encode(message{Round: r})
	}

	serve, ok := servers[role]
	if !ok {
		return fail(fmt.Errorf("unknown peer %q", role))
	}
	s, err := serve(ctx, dir)
	if err != nil {
		return fail(err)
	}
	defer s.close()
	if err := enc.Encode(message{Endpoint: s.endpoint}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// A process is a child that has been started.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	lines *bufio.Scanner
}

// startChild starts a peer, which ends with ctx at the latest.
func startChild(ctx context.Context, role, dir string, p plan, stderr io.Writer) (*process, error) {
	own, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own binary: %w", err)
	}
	planned, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, own, ChildCommand, role, dir, string(planned))
	cmd.Stderr = stderr
	cmd.WaitDelay = stopTimeout
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	cmd.Cancel = stdin.Close
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	return &process{cmd: cmd, stdin: stdin, lines: bufio.NewScanner(stdout)}, nil
}

// read waits for the next message.
func (p *process) read() (message, error) {
	var m message
	if !p.lines.Scan() {
		return m, fmt.Errorf("the peer ended without an answer")
	}
	if err := json.Unmarshal(p.lines.Bytes(), &m); err != nil {
		return m, fmt.Errorf("read answer of peer: %w", err)
	}
	if m.Error != "" {
		return m, fmt.Errorf("peer: %s", m.Error)
	}
	return m, nil
}

// stop ends the child and waits for it.
func (p *process) stop() {
	p.stdin.Close()
	kill := time.AfterFunc(stopTimeout, func() { p.cmd.Process.Kill() })
	defer kill.Stop()
	for p.lines.Scan() { // Wait must not come before the end of the pipe
	}
	p.cmd.Wait()
}
