package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// systemd is a socket such as systemd has, and the notifier that TakeSystemd returns for it.
func systemd(t *testing.T, name, usec, pid string) (*net.UnixConn, *Systemd) {
	t.Helper()
	c, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Skipf("no unix datagram sockets here: %v", err)
	}
	t.Cleanup(func() { c.Close() })
	t.Setenv("NOTIFY_SOCKET", name)
	t.Setenv("WATCHDOG_USEC", usec)
	t.Setenv("WATCHDOG_PID", pid)
	return c, TakeSystemd()
}

// path is short: socket names end after some 100 bytes, and t.TempDir is long.
func path(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "n")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

func receive(t *testing.T, c *net.UnixConn) string {
	t.Helper()
	buf := make([]byte, 4096)
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, err := c.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

func TestMessages(t *testing.T) {
	names := map[string]string{"path": path(t)}
	if runtime.GOOS == "linux" {
		names["abstract"] = fmt.Sprintf("@karve-notify-test-%d", os.Getpid())
	}
	for kind, name := range names {
		t.Run(kind, func(t *testing.T) {
			c, n := systemd(t, name, "", "")
			for _, v := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
				if _, set := os.LookupEnv(v); set {
					t.Errorf("%s is still set", v)
				}
			}
			for _, tc := range []struct {
				send func() error
				want string
			}{
				{func() error { return n.Status("starting:\nstorage\r\nREADY=1") }, "STATUS=starting: storage READY=1"},
				{func() error { return n.ExtendTimeout(90 * time.Second) }, "EXTEND_TIMEOUT_USEC=90000000"},
				{func() error { return n.ExtendTimeout(-1) }, "EXTEND_TIMEOUT_USEC=0"},
				{func() error { return n.Ready("ready\nat last") }, "READY=1\nSTATUS=ready at last"},
				{func() error { return n.Ready("") }, "READY=1"},
				{n.Stopping, "STOPPING=1"},
			} {
				if err := tc.send(); err != nil {
					t.Fatal(err)
				}
				if got := receive(t, c); got != tc.want {
					t.Errorf("got %q, want %q", got, tc.want)
				}
			}
		})
	}
}

// A message that systemd has no room for must not hold up a start or a stop.
func TestABusySystemdDelaysNoMessageForEver(t *testing.T) {
	_, n := systemd(t, path(t), "", "")
	n.patience = 10 * time.Millisecond
	for range 100_000 { // nobody reads
		if err := n.Status("busy"); err != nil {
			if !errors.Is(err, os.ErrDeadlineExceeded) && runtime.GOOS == "linux" {
				t.Errorf("got %v, want that the time is over", err)
			}
			return
		}
	}
	t.Error("the socket took every message")
}

func TestWatchdogTimeout(t *testing.T) {
	for _, tc := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"30000000", "", 30 * time.Second},
		{"30000000", strconv.Itoa(os.Getpid()), 30 * time.Second},
		{"30000000", "1", 0},
		{"", "", 0},
		{"3600000000", "", time.Hour}, // more than an int has on a 32-bit board
		{"0", "", 0},
		{"-1", "", 0},
		{"18446744073709551615", "", 0},
		{"soon", "", 0},
	} {
		t.Setenv("NOTIFY_SOCKET", "/nowhere")
		t.Setenv("WATCHDOG_USEC", tc.usec)
		t.Setenv("WATCHDOG_PID", tc.pid)
		if got := TakeSystemd().watchdog; got != tc.want {
			t.Errorf("WATCHDOG_USEC=%s WATCHDOG_PID=%s: got %v, want %v", tc.usec, tc.pid, got, tc.want)
		}
	}
}

func TestWatchdog(t *testing.T) {
	c, n := systemd(t, path(t), "20000", "")
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var illness atomic.Pointer[error]
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Watchdog(ctx, func(context.Context) error {
			if err := illness.Load(); err != nil {
				return *err
			}
			return nil
		})
	}()
	for range 3 {
		if got := receive(t, c); got != "WATCHDOG=1" {
			t.Fatalf("healthy: got %q, want WATCHDOG=1", got)
		}
	}
	err := errors.New("disk\nfull")
	illness.Store(&err)
	got := receive(t, c)
	for got == "WATCHDOG=1" { // sent before the illness
		got = receive(t, c)
	}
	for range 3 {
		if want := "STATUS=unhealthy: disk full"; got != want {
			t.Fatalf("ill: got %q, want %q and no sign of life", got, want)
		}
		got = receive(t, c)
	}
	illness.Store(nil)
	for strings.HasPrefix(got, "STATUS=") {
		got = receive(t, c)
	}
	if want := "WATCHDOG=1\nSTATUS=healthy again"; got != want {
		t.Errorf("well again: got %q, want %q", got, want)
	}
	cancel()
	<-done
}

// TestHungCheck has a health check that does not come back by itself.
func TestHungCheck(t *testing.T) {
	c, n := systemd(t, path(t), "20000", "")
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		n.Watchdog(ctx, func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() })
	}()
	if got := receive(t, c); !strings.HasPrefix(got, "STATUS=unhealthy: ") {
		t.Errorf("got %q, want no sign of life", got)
	}
	cancel()
	<-done
}
