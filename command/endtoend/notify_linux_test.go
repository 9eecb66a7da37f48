package endtoend

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// systemd is a socket such as systemd has, and what was sent to it.
type systemd struct {
	t    *testing.T
	name string

	mu       sync.Mutex
	messages []string
	changed  chan struct{} // closed with the next message
	on       func(message string)
}

// listen opens the socket; on is called with each message, before the next is
// read.
func listen(t *testing.T, name string, on func(string)) *systemd {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	s := &systemd{t: t, name: name, changed: make(chan struct{}), on: on}
	done := make(chan struct{})
	t.Cleanup(func() { c.Close(); <-done })
	go func() {
		defer close(done)
		buffer := make([]byte, 8192)
		for {
			n, err := c.Read(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			} else if err != nil {
				t.Error(err)
				return
			}
			message := string(buffer[:n])
			called := make(chan struct{})
			go func() { // its own: a t.Fatal in it must not end this one
				defer close(called)
				on(message)
			}()
			<-called
			s.mu.Lock()
			s.messages = append(s.messages, message)
			close(s.changed)
			s.changed = make(chan struct{})
			s.mu.Unlock()
		}
	}()
	return s
}

func (s *systemd) env() string { return "NOTIFY_SOCKET=" + s.name }

func (s *systemd) all() ([]string, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.messages), s.changed
}

// until waits for enough messages.
func (s *systemd) until(what string, enough func(messages []string) bool) {
	s.t.Helper()
	timeout := time.After(patience)
	for {
		messages, changed := s.all()
		if enough(messages) {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			s.t.Fatalf("waiting for %s: got %q", what, messages)
		}
	}
}

// has returns where in messages the first with this line is, or -1.
func has(messages []string, line string) int {
	return slices.IndexFunc(messages, func(m string) bool { return slices.Contains(strings.Split(m, "\n"), line) })
}

func count(messages []string, line string) (n int) {
	for _, m := range messages {
		n += strings.Count("\n"+m+"\n", "\n"+line+"\n")
	}
	return n
}

// TestNotify follows a server from its start to its end.
func TestNotify(t *testing.T) {
	parallel(t)
	data := t.TempDir()
	kubeconfig := filepath.Join(data, "admin.kubeconfig")
	const earlier = "of an earlier start"
	if err := os.WriteFile(kubeconfig, []byte(earlier), 0o600); err != nil {
		t.Fatal(err)
	}
	s := listen(t, fmt.Sprintf("@karve-main-test-%d", os.Getpid()), func(message string) {
		switch {
		case strings.HasPrefix(message, "STATUS=starting "):
			// Whatever was there before says that the cluster is usable. By the
			// time the message is read, that of this start may be there.
			if text, err := os.ReadFile(kubeconfig); err == nil && string(text) == earlier {
				t.Errorf("%q: the kubeconfig of an earlier start is still there", message)
			}
		case strings.Contains(message, "READY=1"):
			readyz(t, &process{t: t, kubeconfig: kubeconfig})
		}
	})
	p := launchWith(t, data, []string{s.env(), "WATCHDOG_USEC=1000000"})
	p.waitReady()
	s.until("READY=1", func(m []string) bool { return count(m, "READY=1") > 0 })
	before, _ := s.all()
	s.until("signs of life", func(m []string) bool { return count(m, "WATCHDOG=1") >= count(before, "WATCHDOG=1")+3 })
	p.signal(syscall.SIGTERM)
	p.wantCleanEnd(patience)
	s.until("STOPPING=1", func(m []string) bool { return has(m, "STOPPING=1") >= 0 })

	messages, _ := s.all()
	if got := count(messages, "READY=1"); got != 1 {
		t.Errorf("READY=1: got it %d times, want once: %q", got, messages)
	}
	if got := count(messages, "STOPPING=1"); got != 1 {
		t.Errorf("STOPPING=1: got it %d times, want once: %q", got, messages)
	}
	last := -1
	for _, line := range []string{
		"STATUS=starting the datastore", "STATUS=starting the API server", "STATUS=starting the controllers", "STATUS=starting the scheduler",
		"READY=1", "STOPPING=1",
		"STATUS=stopping the scheduler", "STATUS=stopping the controllers", "STATUS=stopping the API server", "STATUS=stopping the datastore",
	} {
		at := has(messages, line)
		if at <= last {
			t.Errorf("%s: got it as message %d, want it after message %d: %q", line, at, last, messages)
		}
		last = at
	}
	for _, m := range messages {
		if strings.Contains(m, "unhealthy") {
			t.Errorf("got %q from a server that was well", m)
		}
	}
	if at := has(messages, "READY=1"); at >= 0 && !strings.Contains(messages[at], "\nSTATUS=ready at "+p.url) {
		t.Errorf("READY=1 came with %q, want a status with %s", messages[at], p.url)
	}
}
