package lifecycle

import (
	"context"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"
)

// sendTimeout limits one message: systemd may be busy, and a full queue blocks.
const sendTimeout = 5 * time.Second

// Systemd sends messages to systemd, by the protocol of sd_notify(3): datagrams of NAME=value lines to the
// socket that systemd names in the environment. A nil *Systemd sends nothing and reports no error: systemd
// did not start the process, or its unit is not of Type=notify. All methods may be called concurrently.
type Systemd struct {
	socket   string
	watchdog time.Duration // WatchdogSec= of the unit; 0: there is no watchdog
	patience time.Duration // of one message
}

// TakeSystemd reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID and unsets them, so
// that nothing else in this process speaks in its name (kube-apiserver sends
// READY=1 by itself as soon as it listens, k8s.io/apiserver/pkg/server/
// genericapiserver.go) and no child inherits them. It returns nil when
// NOTIFY_SOCKET is not set.
//
// Setting variables is not safe while other goroutines read them: call it
// before any are started.
func TakeSystemd() *Systemd {
	socket, usec, pid := os.Getenv("NOTIFY_SOCKET"), os.Getenv("WATCHDOG_USEC"), os.Getenv("WATCHDOG_PID")
	for _, name := range []string{"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} {
		_ = os.Unsetenv(name) // fails for malformed names only
	}
	if socket == "" {
		return nil
	}
	n := &Systemd{socket: socket, patience: sendTimeout}
	// sd_watchdog_enabled(3): the variables may be another process's.
	if pid == "" || pid == strconv.Itoa(os.Getpid()) {
		const longest = uint64(1<<63-1) / uint64(time.Microsecond)
		if v, err := strconv.ParseUint(usec, 10, 64); err == nil && v <= longest {
			n.watchdog = time.Duration(v) * time.Microsecond
		}
	}
	return n
}

// Ready reports that the service is up. status is the line in "systemctl status" and may be
// empty. With Type=notify, units that are ordered After= this one start now.
func (n *Systemd) Ready(status string) error {
	return n.send("READY=1" + statusLine(status))
}

// Status changes the line in "systemctl status". Line breaks become spaces.
func (n *Systemd) Status(status string) error {
	return n.send("STATUS=" + oneLine(status))
}

// Stopping reports that the service has begun to stop.
func (n *Systemd) Stopping() error { return n.send("STOPPING=1") }

// ExtendTimeout asks for d more from now on, rounded down to microseconds, for the start or
// stop in progress (TimeoutStartSec=, TimeoutStopSec=). The next message of this kind, or the
// end of the phase, must come within d.
func (n *Systemd) ExtendTimeout(d time.Duration) error {
	return n.send("EXTEND_TIMEOUT_USEC=" + strconv.FormatInt(max(d, 0).Microseconds(), 10))
}

// Watchdog gives a sign of life immediately, and then every half of the unit's WatchdogSec=
// as long as healthy returns nil, until ctx ends. Without a watchdog it returns immediately. If
// healthy returns an error, or does not return within that half, there is no sign of life, and
// "systemctl status" shows the error. systemd restarts a service that stays silent for the whole
// time. If systemd cannot be reached, Watchdog tries again the next time.
func (n *Systemd) Watchdog(ctx context.Context, healthy func(ctx context.Context) error) {
	if n == nil || n.watchdog <= 0 {
		return
	}
	every := n.watchdog / 2
	tick := time.NewTicker(every)
	defer tick.Stop()
	ill := false
	for {
		check, cancel := context.WithTimeout(ctx, every)
		err := healthy(check)
		cancel()
		if ctx.Err() != nil {
			return // the process is stopping, which is what err says
		}
		switch {
		case err != nil:
			ill = true
			_ = n.Status("unhealthy: " + err.Error())
		case ill:
			ill = false
			_ = n.send("WATCHDOG=1\nSTATUS=healthy again")
		default:
			_ = n.send("WATCHDOG=1")
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// send writes one datagram. It opens the socket each time, because systemd makes a new one
// when it re-executes itself. DESIGN.md says why no library does this.
func (n *Systemd) send(message string) error {
	if n == nil {
		return nil
	}
	// Go's net turns a leading @ into the zero byte of an abstract socket.
	c, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("notifying systemd: %w", err)
	}
	defer c.Close()
	if err := c.SetWriteDeadline(time.Now().Add(n.patience)); err != nil {
		return fmt.Errorf("notifying systemd: %w", err)
	}
	if _, err := c.Write([]byte(message)); err != nil {
		return fmt.Errorf("notifying systemd: %w", err)
	}
	return nil
}

// statusLine is an additional line, or nothing.
func statusLine(status string) string {
	if status == "" {
		return ""
	}
	return "\nSTATUS=" + oneLine(status)
}

// oneLine removes line breaks, which would begin another assignment.
func oneLine(s string) string {
	return strings.NewReplacer("\r\n", " ", "\n", " ", "\r", " ", "\x00", " ").Replace(s)
}
