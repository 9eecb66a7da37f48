// Package endtoend tests karve as its users have it: the real program, in processes of its own.
package endtoend

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	karvecommand "github.com/karve-k8s/karve/command"
	"github.com/karve-k8s/karve/internal/eventually"
	"github.com/karve-k8s/karve/servertest/process/child"
)

// The tests of this package run the real command in processes of its own: the
// test binary is karve when this variable is set. It is so twice as well: with
// withParent, standard input is a pipe from the test, and its end ends karve.
const (
	asKarve    = "TEST_BINARY_IS_KARVE"
	withParent = "with-parent"
)

// patience is how long a test waits for anything before it fails. The machine
// may be slow and busy; what is promised to be quick has a limit of its own.
const patience = eventually.Limit

func TestMain(m *testing.M) {
	switch os.Getenv(asKarve) {
	case "":
		os.Exit(m.Run())
	case withParent:
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin)
			os.Exit(99) // the test is gone
		}()
	}
	os.Unsetenv(asKarve)
	karvecommand.Main()
}

// two limits how many tests run servers at a time.
var two = make(chan struct{}, 2)

// parallel lets the test run beside one other.
func parallel(t *testing.T) {
	t.Helper()
	t.Parallel()
	two <- struct{}{}
	t.Cleanup(func() { <-two })
}

// command is karve, or kubectl, with nothing of the user's in its environment.
func command(t testing.TB, name string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := &exec.Cmd{Path: self, Args: append([]string{name}, args...)}
	cmd.Env = []string{
		asKarve + "=1",
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + t.TempDir(),
		"TMPDIR=" + tempDir(t),
		"KARVE_CONFIG=" + os.DevNull, // not the one in /etc
	}
	return cmd
}

// tempDir has a short name, and fails the test if something is left in it.
func tempDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "karve-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("temporary files left behind: %v (%v)", left, err)
		}
		os.RemoveAll(dir)
	})
	return dir
}

// outcome is what a command that has ended leaves.
type outcome struct {
	stdout, stderr string
	code           int
}

// finish runs a command to its end.
func finish(t testing.TB, cmd *exec.Cmd) outcome {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(patience, func() { cmd.Process.Kill() })
	defer timer.Stop()
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// karve runs a karve command that must succeed, and returns what it prints.
func karve(t testing.TB, args ...string) string {
	t.Helper()
	return succeed(t, command(t, "karve", args...))
}

func succeed(t testing.TB, cmd *exec.Cmd) string {
	t.Helper()
	got := finish(t, cmd)
	if got.code != 0 {
		t.Fatalf("%v: exit code %d, want 0\n%s%s", cmd.Args, got.code, got.stdout, got.stderr)
	}
	return got.stdout
}

// process is a running `karve server`.
type process struct {
	t              testing.TB
	cmd            *exec.Cmd
	dir            string
	stdout, stderr output
	ended          <-chan struct{}

	url, insecure, kubeconfig string // from the ready text
}

// readyText is what `karve server` prints when it is ready: the next command is on a line of its own.
var readyText = regexp.MustCompile(`^karve is ready after \S+ \([A-Za-z ]+ \d[^)]*\) at (https://\S+)(?: and (http://\S+))?\nPage: .*\nNext:\n  export KUBECONFIG=(\S+); (?:karve )?kubectl get namespaces\n$`)

// launch starts `karve server` on free ports with the data directory dir, and
// does not wait for it. At the end of the test it is stopped, and must then
// have behaved.
func launch(t testing.TB, dir string, args ...string) *process {
	t.Helper()
	return launchWith(t, dir, nil, args...)
}

func launchWith(t testing.TB, dir string, env []string, args ...string) *process {
	t.Helper()
	args = append([]string{"server", "--data-dir", dir, "--secure-port", "0", "--insecure-port", "-1"}, args...)
	p := launchAs(t, "karve", env, args...)
	p.dir = dir
	return p
}

// begin starts the process. ended is closed when it has ended.
func (p *process) begin() {
	p.t.Helper()
	p.cmd.Stdout, p.cmd.Stderr = &p.stdout, &p.stderr
	started, err := child.Start(p.cmd)
	if err != nil {
		p.t.Fatal(err)
	}
	p.ended = started.Ended()
}

// launchAs is launchWith for any program that karve is.
func launchAs(t testing.TB, name string, env []string, args ...string) *process {
	t.Helper()
	p := prepare(t, name, env, args...)
	p.begin()
	return p
}

// prepare returns a process that has not begun, and is stopped at the end of the test.
func prepare(t testing.TB, name string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: command(t, name, args...)}
	p.cmd.Env = append(append(p.cmd.Env, asKarve+"="+withParent), env...)
	if _, err := p.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if p.ended != nil && p.running() {
			p.stop()
		}
		if t.Failed() {
			t.Logf("the log of %s %v:\n%s", name, args, p.stderr.tail())
		}
	})
	return p
}

// start is launch, and waits until the server says that it is ready.
func start(t testing.TB, dir string, args ...string) *process {
	t.Helper()
	return launch(t, dir, args...).waitReady()
}

// Options of a server that only stores and serves: it starts and stops sooner.
var bare = []string{"--no-controllers", "--disable-scheduler"}

func (p *process) waitReady() *process {
	p.t.Helper()
	p.poll("the ready text", func() error {
		if !strings.Contains(p.stdout.String(), " get namespaces\n") {
			return errors.New("there is none yet")
		}
		return nil
	})
	match := readyText.FindStringSubmatch(p.stdout.String())
	if match == nil {
		p.t.Fatalf("standard output: got %q, want %s", p.stdout.String(), readyText)
	}
	p.url, p.insecure, p.kubeconfig = match[1], match[2], match[3]
	return p
}

// poll is eventually.Nil, but fails immediately when the server ends.
func (p *process) poll(what string, try func() error) {
	p.t.Helper()
	eventually.Nil(p.t, what, func() error {
		err := try()
		if err != nil && !p.running() {
			p.t.Fatalf("waiting for %s: the server has ended with code %d: %v", what, p.cmd.ProcessState.ExitCode(), err)
		}
		return err
	})
}

func (p *process) running() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

func (p *process) signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Errorf("send %v: %v", s, err)
	}
}

// wait waits until the process has ended and returns its exit code, which is
// -1 after a signal that killed it.
func (p *process) wait(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		p.t.Errorf("the server did not end within %v", limit)
		p.signal(syscall.SIGQUIT) // its goroutines go to the log
		select {
		case <-p.ended:
		case <-time.After(5 * time.Second):
			p.kill()
		}
	}
	return p.cmd.ProcessState.ExitCode()
}

// kill is kill -9.
func (p *process) kill() {
	p.signal(os.Kill)
	<-p.ended
}

// stop sends SIGTERM and checks that the stop is a clean one.
func (p *process) stop() {
	p.t.Helper()
	p.signal(syscall.SIGTERM)
	p.wantCleanEnd(patience)
}

func (p *process) wantCleanEnd(limit time.Duration) {
	p.t.Helper()
	if code := p.wait(limit); code != 0 {
		p.t.Errorf("exit code after SIGTERM: got %d, want 0", code)
	}
	if trace := stack(p.stderr.String()); trace != "" {
		p.t.Errorf("standard error has a stack: %s", trace)
	}
}

// frames are lines that only a stack or a panic has. A log line may name its
// source: foo.go:123 in it is not enough.
var frames = regexp.MustCompile(`(?m)^goroutine \d+ .*$|^\s+\S+\.go:\d+ \+0x.*$|^.*\bpanic: .*$|^fatal error: .*$`)

// stack returns the first line of text that is of a stack, if any.
func stack(text string) string { return frames.FindString(text) }

// config is the admin's client configuration for the secure listener.
func (p *process) config() *rest.Config {
	p.t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", p.kubeconfig)
	if err != nil {
		p.t.Fatal(err)
	}
	return fast(config)
}

// plain is a client configuration for the insecure listener.
func (p *process) plain() *rest.Config { return fast(&rest.Config{Host: p.insecure}) }

func fast(config *rest.Config) *rest.Config {
	config.QPS, config.Timeout = -1, patience
	config.WarningHandler = rest.NoWarnings{}
	return config
}

func client(t testing.TB, config *rest.Config) kubernetes.Interface {
	t.Helper()
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// kubectl runs `karve kubectl` against the server and returns what it prints.
func (p *process) kubectl(args ...string) string {
	p.t.Helper()
	cmd := command(p.t, "karve", append([]string{"kubectl"}, args...)...)
	cmd.Env = append(cmd.Env, "KUBECONFIG="+p.kubeconfig)
	return succeed(p.t, cmd)
}

// long skips a test under -short, where one or two tests of each subject run: every start of a
// server costs a second of CPU.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("another test of this subject runs under -short")
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// output is what a running process writes.
type output struct {
	mu   sync.Mutex
	text []byte
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text = append(o.text, p...)
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.text)
}

// tail is what a person wants to read of it.
func (o *output) tail() string {
	lines := slices.Collect(strings.Lines(o.String()))
	if most := 100; len(lines) > most {
		lines = append([]string{fmt.Sprintf("… %d lines …\n", len(lines)-most)}, lines[len(lines)-most:]...)
	}
	return strings.Join(lines, "")
}

// write makes a file and returns its path.
func write(t testing.TB, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
