package simulate

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"
	"k8s.io/streaming/pkg/httpstream/wsstream"
	"k8s.io/utils/exec"

	"github.com/karve-k8s/karve/simulate/connections"
)

const (
	// streamIdle and streamCreation are the kubelet's limits.
	streamIdle     = 4 * time.Hour
	streamCreation = 30 * time.Second
	// cannotRun is a shell's exit code for a command that it found and cannot run.
	cannotRun = 126
	// attachPoll is how often an attached client's container is looked at.
	attachPoll = 50 * time.Millisecond
)

// taking is a request that takes over its connection: exec, attach or port-forward.
type taking struct {
	pod       types.NamespacedName
	container string
	reason    string // why nothing can be done in it

	of     *simulation
	stderr bool            // the client wants one
	ends   <-chan struct{} // when the client is gone, or the simulation ends
	copies sync.WaitGroup  // goroutines that read from the client, which the end of the connection ends
}

// take answers such a request with upstream's code for kubelets. Most clients of WebSockets show nothing
// of the response to a refused upgrade but its status. So every upgrade is accepted, and the client gets
// the reason on the streams, as with a kubelet that cannot start a command. One is refused: a port-forward
// by SPDY to a Pod for which nothing listens. Its clients show the reason at once, and otherwise would
// show it only when somebody connects.
func (k *Kubelet) take(w http.ResponseWriter, r *http.Request, what string, t *taking, say func(int, string)) {
	k.mu.Lock()
	t.of = k.of
	closed := k.closed
	if t.of != nil {
		k.streams.Add(1)
	}
	k.mu.Unlock()
	if t.of == nil {
		say(http.StatusServiceUnavailable, "the nodes have stopped")
		return
	}
	defer k.streams.Done()
	conn := connOf(r)
	if conn == nil {
		say(http.StatusInternalServerError, "the connection cannot be taken over")
		return
	}
	t.ends = conn.gone
	defer t.copies.Wait() // upstream's code has ended the connection by then
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-closed:
			conn.Close()
		case <-done:
		}
	}()

	if what == "portForward" {
		_, listens, err := t.of.listens(t.pod)
		if len(listens) == 0 && !wsstream.IsWebSocketRequest(r) {
			text := t.reason + ", which could listen on a port. The annotation " + Listen + " lets a process of this machine answer"
			if err != nil {
				text = err.Error()
			}
			say(http.StatusNotImplemented, text)
			return
		}
		options, err := portforward.NewV4Options(r)
		if err != nil {
			say(http.StatusBadRequest, err.Error())
			return
		}
		portforward.ServePortForward(w, r, t, t.pod.String(), "", options, streamIdle, streamCreation, portforward.SupportedProtocols)
		return
	}
	options, err := remotecommand.NewOptions(r)
	if err != nil {
		say(http.StatusBadRequest, err.Error())
		return
	}
	t.stderr = options.Stderr
	protocols := []string{remotecommand.StreamProtocolV4Name, remotecommand.StreamProtocolV3Name, remotecommand.StreamProtocolV2Name, remotecommand.StreamProtocolV1Name}
	if what == "exec" {
		remotecommand.ServeExec(w, r, t, t.pod.Name, "", t.container, r.URL.Query()["command"], options, streamIdle, streamCreation, protocols)
	} else {
		remotecommand.ServeAttach(w, r, t, t.pod.Name, "", t.container, options, streamIdle, streamCreation, protocols)
	}
}

// ExecInContainer implements remotecommand.Executor. No command can be executed, but a ConfigMap may have its answer.
func (t *taking) ExecInContainer(ctx context.Context, _, _, _ string, command []string, in io.Reader, out, stderr io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	t.ignore(in, resize)
	if !t.of.runs(ctx, t.pod, t.container) { // the kubelet's words
		return fmt.Errorf("container not found (%q)", t.container)
	}
	answer, err := t.of.answerOf(ctx, t.pod, t.container, command)
	if answer == nil {
		if err == nil {
			err = fmt.Errorf("%s, so there is nothing to exec in it. The annotation %s gives commands an answer", t.reason, Exec)
		}
		err = fmt.Errorf("%w: %w", ErrSimulated, err)
		t.tell(err, out, stderr)
		return exec.CodeExitError{Err: err, Code: cannotRun}
	}
	if out != nil {
		io.WriteString(out, answer.Stdout)
	}
	if stderr == nil { // with a terminal there is one stream
		stderr = out
	}
	if stderr != nil {
		io.WriteString(stderr, answer.Stderr)
	}
	if answer.ExitCode != 0 {
		return exec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", answer.ExitCode), Code: answer.ExitCode}
	}
	return nil
}

// ignore reads what the client sends. Unread input would keep a WebSocket from noticing that its client has left.
func (t *taking) ignore(in io.Reader, resize <-chan remotecommand.TerminalSize) {
	if in != nil {
		t.copies.Go(func() { io.Copy(io.Discard, in) })
	}
	if resize != nil {
		t.copies.Go(func() {
			for range resize {
			}
		})
	}
}

// AttachContainer implements remotecommand.Attacher. The streams end with the container, or when the client
// leaves.
func (t *taking) AttachContainer(ctx context.Context, _, _, _ string, in io.Reader, out, stderr io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	t.ignore(in, resize)
	t.tell(fmt.Errorf("%w: %s, which could read or write something", ErrSimulated, t.reason), out, stderr)
	look := time.NewTicker(attachPoll)
	defer look.Stop()
	for t.of.runs(ctx, t.pod, t.container) {
		select {
		case <-look.C:
		case <-t.ends:
			return nil
		}
	}
	return nil
}

// tell writes a line where the client sees it: with a terminal, or without a stderr, on stdout.
func (t *taking) tell(err error, out, stderr io.Writer) {
	if t.stderr {
		out = stderr
	}
	if out != nil {
		fmt.Fprintln(out, err)
	}
}

// runs reports whether a container runs.
func (s *simulation) runs(ctx context.Context, key types.NamespacedName, container string) bool {
	p, err := s.podNow(ctx, key)
	if err != nil {
		return false
	}
	c, _ := podutil.GetContainerStatus(statusesOf(&p.Status), container)
	return c.State.Running != nil
}

// PortForward implements portforward.PortForwarder: it connects a stream with the process that answers at
// a port.
func (t *taking) PortForward(ctx context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	conn, err := t.of.dialPod(ctx, t.pod, uint16(port))
	if err != nil {
		return err
	}
	defer conn.Close()
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-t.ends:
			conn.Close()
		case <-over:
		}
	}()
	t.copies.Go(func() {
		io.Copy(conn, stream)
		conn.(*connections.Held).CloseWrite()
	})
	_, err = io.Copy(stream, conn)
	switch {
	case errors.Is(err, ErrSimulated): // the Pod or its node no longer answers
		return err
	case err != nil && !errors.Is(err, net.ErrClosed):
		return fmt.Errorf("%w: port %d of Pod %s: %w", ErrSimulated, port, t.pod, err)
	}
	return nil
}

// connKey is the key of a request's connection in its context.
type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	if secure, ok := c.(*tls.Conn); ok {
		c = secure.NetConn()
	}
	return context.WithValue(ctx, connKey{}, c)
}

// connOf returns a request's connection, or nil.
func connOf(r *http.Request) *watchedConn {
	conn, _ := r.Context().Value(connKey{}).(*watchedConn)
	return conn
}

// watchedConn is a connection that says when it has ended. Whoever takes over a connection reads from it
// all the time, so its end is noticed.
type watchedConn struct {
	net.Conn
	node *node
	gone chan struct{}
	once sync.Once
}

func (c *watchedConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil {
		if failure, ok := err.(net.Error); !ok || !failure.Timeout() {
			c.end()
		}
	}
	return n, err
}

func (c *watchedConn) Close() error {
	c.end()
	return c.Conn.Close()
}

func (c *watchedConn) end() { c.once.Do(func() { close(c.gone) }) }
