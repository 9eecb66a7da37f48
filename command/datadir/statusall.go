package datadir

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/karve-k8s/karve/command/options"
	"github.com/karve-k8s/karve/command/output"
	"github.com/karve-k8s/karve/command/servers"
)

// allUsage is the usage of `karve status --all`, which depends on how the system lets servers
// be found (see package servers).
var allUsage = func() string {
	if runtime.GOOS == "linux" {
		return "show all servers that run on this machine: this user's, or everybody's for root"
	}
	return "show the servers that run in the usual data directories and in KARVE_DATA_DIR. This system does not tell about others."
}()

// onlyAll refuses options beside --all that name one server. Variables may stay set.
func onlyAll(c *cli.Context) error {
	for _, name := range []string{"data-dir", "datastore-endpoint"} {
		if c.IsSet(name) && os.Getenv("KARVE_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))) == "" {
			return fmt.Errorf("--all shows the servers of all data directories: leave out --%s", name)
		}
	}
	return nil
}

// statusOfAll is `karve status --all`.
func statusOfAll(c *cli.Context) error {
	running, err := servers.Running(os.Getenv("KARVE_DATA_DIR"), options.DefaultDataDir(), "/var/lib/karve")
	if err != nil {
		return err
	}
	states := []*ServerState{} // [] in JSON, if there is none
	code := 0
	for _, found := range running {
		s, err := readState(c.Context, found.DataDir, time.Now())
		switch {
		case c.Context.Err() != nil:
			return context.Cause(c.Context)
		case err != nil: // any user can start a server
			s = &ServerState{State: stateUnknown, Problem: err.Error(), DataDir: found.DataDir, PID: found.PID}
		case s.State == stateStopped: // since it was found
			continue
		}
		if s.State != stateReady {
			code = exitNotReady
		}
		states = append(states, s)
	}
	if len(states) == 0 {
		code = exitStopped
		fmt.Fprintln(c.App.ErrWriter, "karve: no server runs that this user can see")
	}
	err = output.Show(c, states, func(w io.Writer) {
		if len(states) == 0 {
			return
		}
		fmt.Fprintln(w, "DATA DIRECTORY\tSTATE\tPROCESS\tADDRESS\tVERSION")
		for _, s := range states {
			fmt.Fprintf(w, "%s\t%s\t%d\t%s\t%s\n", output.Printable(s.DataDir), s.State, s.PID, orDash(output.Printable(s.URL)), orDash(output.Printable(s.Version)))
		}
		for _, s := range states {
			if s.Problem != "" {
				fmt.Fprintf(w, "%s: %s\n", output.Printable(s.DataDir), output.Printable(s.Problem))
			}
		}
	})
	if err == nil && code != 0 {
		return cli.Exit("", code)
	}
	return err
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
