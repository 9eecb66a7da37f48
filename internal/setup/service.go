package setup

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Init is the program that runs services.
type Init string

// The init systems that Karve knows.
const (
	Systemd Init = "systemd"
	OpenRC  Init = "openrc"
	None    Init = ""
)

// FindInit finds what runs services here: for the machine, or for this user. A systemd of the user's that cannot be reached is an error.
func FindInit(ctx context.Context, user bool, run Runner) (Init, error) {
	_, err := os.Stat("/run/systemd/system")
	switch {
	case err == nil && Has("systemctl"):
		if user {
			if _, err := run(ctx, "systemctl", "--user", "show-environment"); err != nil {
				return None, fmt.Errorf("%w: this session cannot reach your systemd: log in as this user (by ssh, or machinectl shell USER@), or set XDG_RUNTIME_DIR=/run/user/%d. Without a service: install.sh binary", err, os.Getuid())
			}
		}
		return Systemd, nil
	case !user && Has("openrc-run") && Has("rc-service"):
		return OpenRC, nil
	}
	return None, nil
}

// Service is a service of the machine, or of a user's systemd.
type Service struct {
	Name string
	Init Init
	User bool
	File string // the unit, or OpenRC's script
	Log  string // with OpenRC, the file to which it writes
	Run  Runner
}

func (s *Service) ctl(ctx context.Context, args ...string) (string, error) {
	if s.User {
		args = append([]string{"--user"}, args...)
	}
	return s.Run(ctx, "systemctl", args...)
}

// Running reports whether the service runs, or is starting.
func (s *Service) Running(ctx context.Context) bool {
	switch s.Init {
	case Systemd:
		state, _ := s.ctl(ctx, "is-active", s.Name)
		switch strings.TrimSpace(state) {
		case "active", "activating", "reloading":
			return true
		}
	case OpenRC:
		_, err := s.Run(ctx, "rc-service", s.Name, "status")
		return err == nil
	}
	return false
}

// Active reports whether the service has said that it is ready. OpenRC does not know that.
func (s *Service) Active(ctx context.Context) bool {
	if s.Init == Systemd {
		_, err := s.ctl(ctx, "is-active", "--quiet", s.Name)
		return err == nil
	}
	return s.Running(ctx)
}

// Hopeless reports whether the service has failed repeatedly.
func (s *Service) Hopeless(ctx context.Context) bool {
	if s.Init != Systemd {
		return false
	}
	text, _ := s.ctl(ctx, "show", "-p", "NRestarts", s.Name)
	_, number, _ := strings.Cut(strings.TrimSpace(text), "=")
	if n, _ := strconv.Atoi(number); n >= 3 {
		return true
	}
	_, err := s.ctl(ctx, "is-failed", "--quiet", s.Name)
	return err == nil
}

// Start begins the start of the service, and does not wait for it.
func (s *Service) Start(ctx context.Context) (err error) {
	switch s.Init {
	case Systemd:
		if _, err = s.ctl(ctx, "daemon-reload"); err == nil {
			_, err = s.ctl(ctx, "start", "--no-block", s.Name)
		}
	case OpenRC:
		_, err = s.Run(ctx, "rc-service", s.Name, "start")
	}
	return err
}

// Stop ends the service, if it exists.
func (s *Service) Stop(ctx context.Context) (err error) {
	if !Exists(s.File) {
		return nil
	}
	switch s.Init {
	case Systemd:
		_, err = s.ctl(ctx, "stop", s.Name)
	case OpenRC:
		_, err = s.Run(ctx, "rc-service", s.Name, "--ifstarted", "stop")
	}
	return err
}

// Enable makes the service start with the machine.
func (s *Service) Enable(ctx context.Context) (err error) {
	switch s.Init {
	case Systemd:
		_, err = s.ctl(ctx, "enable", "--quiet", s.Name)
	case OpenRC:
		_, err = s.Run(ctx, "rc-update", "-q", "add", s.Name, "default")
	}
	return err
}

// Remove removes the file of a service that has been stopped. Drop-ins of systemd stay.
func (s *Service) Remove(ctx context.Context) error {
	switch s.Init { // it may be removed already
	case None:
		return nil
	case Systemd:
		_, _ = s.ctl(ctx, "disable", "--quiet", s.Name)
	case OpenRC:
		_, _ = s.Run(ctx, "rc-update", "-q", "del", s.Name, "default")
	}
	if err := os.Remove(s.File); err != nil && !os.IsNotExist(err) {
		return err
	}
	if s.Init == Systemd {
		_, err := s.ctl(ctx, "daemon-reload")
		return err
	}
	return nil
}

// LogLines are the last lines of the service's log.
func (s *Service) LogLines(ctx context.Context) []string {
	const most = 10
	var text string
	switch s.Init {
	case Systemd:
		args := []string{"-u", s.Name, "-n", strconv.Itoa(most), "--no-pager", "-o", "cat"}
		if s.User {
			args = append([]string{"--user"}, args...)
		}
		text, _ = s.Run(ctx, "journalctl", args...)
	case OpenRC:
		text, _ = s.Run(ctx, "tail", "-n", strconv.Itoa(most), s.Log)
	}
	if text = strings.TrimSpace(text); text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

// Wait calls ready once a second until it returns true. It says every ten seconds what it waits for, and
// ends with an error if that takes longer than limit, or hopeless returns true.
func Wait(ctx context.Context, what string, limit time.Duration, say func(format string, args ...any), ready, hopeless func() bool) error {
	began := time.Now() // with the monotonic clock: NTP may set the other one at any moment
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for n := 0; !ready(); n++ {
		waited := time.Since(began).Truncate(time.Second)
		if waited >= limit || hopeless() {
			return fmt.Errorf("%s was not ready within %v", what, waited)
		}
		if n%10 == 0 {
			say("waiting until %s is ready: %v", what, waited)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}
