package endtoend

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/karve-k8s/karve/internal/eventually"
)

// pty is a terminal, and what its user types and sees.
type pty struct {
	user     *os.File // what the user types
	terminal *os.File // what programs have

	reading sync.WaitGroup
	mu      sync.Mutex
	seen    bytes.Buffer
}

func newPTY(t *testing.T) *pty {
	t.Helper()
	user, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no terminal can be made here: %v", err)
	}
	t.Cleanup(func() { user.Close() })
	if err := unix.IoctlSetPointerInt(int(user.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	number, err := unix.IoctlGetInt(int(user.Fd()), unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { terminal.Close() })
	p := &pty{user: user, terminal: terminal}
	p.reading.Go(func() { io.Copy(p, user) }) // until no program has the terminal
	return p
}

// Write gets what the terminal shows.
func (p *pty) Write(text []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.Write(text)
}

func (p *pty) typed(t *testing.T, text string) {
	t.Helper()
	if _, err := p.user.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

// all is what the terminal has shown in the end, when its programs have ended.
func (p *pty) all() string {
	p.terminal.Close()
	p.reading.Wait()
	return p.text()
}

func (p *pty) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen.String()
}

// The terminal sends Ctrl-C to the command and to karve, and kill, timeout --foreground and test harnesses a SIGINT to karve
// alone: the command gets each once.
func TestRunAtATerminalHandsInterruptsOnOnce(t *testing.T) {
	long(t)
	parallel(t)
	for name, interrupt := range map[string]func(*pty, *process){
		"Ctrl-C": func(at *pty, _ *process) { at.typed(t, "\x03") },
		"SIGINT": func(_ *pty, p *process) { p.signal(syscall.SIGINT) },
	} {
		t.Run(name, func(t *testing.T) {
			at := newPTY(t)
			p := runsAt(t, at.terminal, tempDir(t), `n=0; trap 'n=$((n+1))' INT; echo up; until [ $n -gt 0 ]; do sleep 0.1; done; sleep 0.3; exit $((10+n))`)
			interrupt(at, p)
			if code := p.wait(patience); code != 11 {
				t.Errorf("code %d, want 11 after one SIGINT; stderr %q", code, p.stderr.String())
			}
		})
	}
}

// Without a command, karve run starts the user's shell at a terminal. Its exit code is not a failure of the cluster.
func TestRunAShell(t *testing.T) {
	parallel(t)
	at := newPTY(t)
	cmd := command(t, "karve", append([]string{"run"}, bare...)...)
	cmd.Env = append(cmd.Env, "SHELL=/bin/sh", "PS1=ready:", "ENV=")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = at.terminal, at.terminal, at.terminal
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	defer cmd.Process.Kill()
	eventually.True(t, "the shell's prompt", func() bool { return strings.Contains(at.text(), "ready:") })
	at.typed(t, "ls -l $KUBECONFIG | cut -c1-10; exit 3\n")
	eventually.Receive(t, "the end", ended)
	text, code := at.all(), cmd.ProcessState.ExitCode()
	if code != 3 || !strings.Contains(text, "karve: /bin/sh has a cluster of its own: KUBECONFIG is set, and exit removes the cluster") ||
		!strings.Contains(text, "\n-rw-------") || strings.Contains(text, "the server's log") {
		t.Errorf("code %d, and the terminal shows %q", code, text)
	}
}
